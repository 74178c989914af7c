"""Bundles on disk: whole, or refused with the file's name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data
from tests.deploy.planted import random_bundle

from randens.core.errors import FileError
from randens.core.files import sha256
from randens.deploy import Bundle, Predictor
from randens.deploy.predictor import MANIFEST, manifest_checksum


def rewritten(folder: Path, **changes: Any) -> None:
    """Alter a manifest and make its checksum fit again: a forged file whose checksum is right."""
    manifest = {**json.loads((folder / MANIFEST).read_text()), **changes}
    (folder / MANIFEST).write_text(json.dumps({**manifest, "checksum": manifest_checksum(manifest)}))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = random_bundle(tmp_path / "bundle")
    again = Bundle.open(tmp_path / "bundle")
    assert again == made
    assert again.checksum == json.loads((made.path / MANIFEST).read_text())["checksum"]
    assert again.checksum != random_bundle(tmp_path / "other", seed=1).checksum
    (made.path / MANIFEST).write_text((made.path / MANIFEST).read_text().replace("0.5", "0.4"))
    with pytest.raises(FileError, match="checksum"):
        Bundle.open(made.path)


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "longer", "pipe"])
def test_damaged_members_are_refused(tmp_path: Path, damage: str) -> None:
    bundle = random_bundle(tmp_path / "bundle")
    file = tmp_path / "bundle" / "network-01.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    if damage == "pipe":
        os.mkfifo(file)
    elif damage != "missing":
        changed = {"truncated": content[:-7], "altered": content, "longer": content + b"0"}
        file.write_bytes(changed[damage])
    with pytest.raises(FileError, match=r"network-01\.onnx"):
        Predictor(bundle)


@pytest.mark.parametrize(
    "changes",
    [
        {"probs": [0.5, 0.5]},
        {"probs": [0.5, 0.6, -0.1]},
        {"classes": ["one"]},
        {"input_shape": [1, 4, 5]},
        {"files": [{"name": "../../etc/passwd", "sha256": "0" * 64, "size": 1}] * 3},
        {"members": [{"files": [0, 3], "weights": [0.5, 0.5]}] * 3},
        {"format": "something else"},
    ],
)
def test_manifests_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    random_bundle(tmp_path / "bundle")
    rewritten(tmp_path / "bundle", **changes)
    with pytest.raises(FileError, match="bundle"):
        Predictor(tmp_path / "bundle")


def forged(folder: Path, content: bytes) -> None:
    """Put other bytes into the first file, with checksums that fit."""
    (folder / "network-00.onnx").write_bytes(content)
    entry = {"name": "network-00.onnx", "sha256": sha256(content), "size": len(content)}
    rewritten(folder, files=[entry, *json.loads((folder / MANIFEST).read_text())["files"][1:]])


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(FileError, match="randens export"):
        Predictor(tmp_path / "run")
    bundle = random_bundle(tmp_path / "run" / "bundle")
    with pytest.raises(FileError, match="did you mean"):
        Predictor(tmp_path / "run")
    forged(bundle.path, b"this is text")
    with pytest.raises(FileError, match=r"network-00\.onnx is not an ONNX file"):
        Predictor(bundle.path)


def test_weights_in_another_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checksum would cover them."""
    bundle = random_bundle(tmp_path / "bundle", shape=(1, 20, 20))
    model = onnx.load(bundle.path / "network-00.onnx")
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, bundle.path / "network-00.onnx")
    forged(bundle.path, (bundle.path / "network-00.onnx").read_bytes())
    assert (bundle.path / "weights.bin").exists()
    monkeypatch.chdir(bundle.path)
    with pytest.raises(FileError, match=r"network-00\.onnx"):
        Predictor(bundle.path)
