"""The hub, offline: a local folder in place of its server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from randens import RandomizedEnsemble, Threat, models
from randens.core.errors import FileError

hub = pytest.importorskip("huggingface_hub")


def test_an_ensemble_goes_to_the_hub_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def __init__(self, token: str | None) -> None:
            assert token == "t"

        def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> str:
            assert (private, exist_ok) == (True, True)
            return f"https://hub.test/{repo_id}"

        def upload_folder(self, *, repo_id: str, folder_path: Path, delete_patterns: list[str]) -> None:
            assert "member-*.safetensors" in delete_patterns
            shutil.copytree(folder_path, tmp_path / repo_id)

    def download(repo_id: str, **options: Any) -> str:
        assert "README.md" not in options["allow_patterns"]
        if repo_id == "me/nothing":
            raise OSError("404 Client Error")
        return str(tmp_path / repo_id)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", download)
    members = [models.create("linear", classes=3, input_shape=(4,), seed=seed) for seed in (0, 1)]
    rec = RandomizedEnsemble(members, [0.25, 0.75], threat=Threat("l2", 0.5))
    assert rec.push_to_hub("me/mine", private=True, token="t") == "https://hub.test/me/mine"
    card = (tmp_path / "me/mine" / "README.md").read_text()
    assert "library_name: randens" in card
    assert "[0.25, 0.75]" in card
    x = torch.rand(5, 4)
    for source in ("me/mine", tmp_path / "me/mine"):
        again = RandomizedEnsemble.from_pretrained(source)
        assert torch.equal(again.logits(x), rec.eval().logits(x))
        assert again.threat == rec.threat
    with pytest.raises(FileError, match="cannot download me/nothing: 404"):
        RandomizedEnsemble.from_pretrained("me/nothing")
