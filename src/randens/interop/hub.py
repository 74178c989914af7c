"""Ensembles on the Hugging Face Hub: the folder of `RandomizedEnsemble.save`, with a model card."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import huggingface_hub

from randens.core.errors import PathLike, typed
from randens.core.files import file_errors, write_atomic
from randens.ensemble import RandomizedEnsemble

_FILES = ["ensemble.json", "member-*.safetensors"]
_CARD = """---
library_name: randens
pipeline_tag: image-classification
tags: [adversarial-robustness, randomized-ensemble]
---
# {name}

A randomized ensemble: {networks} networks, {members} members; one member is sampled for every prediction with the
probabilities {probs}. It is meant to resist: {threat}. Accuracies are those of `randens.evaluate` on your data.

```python
import randens
rec = randens.RandomizedEnsemble.from_pretrained("{name}")
```
"""


def push(
    rec: RandomizedEnsemble, repo_id: str, *, private: bool | None = None, token: str | None = None
) -> str:
    """Upload an ensemble to the repository "user/name", which is made if it does not exist; return its address."""
    api = huggingface_hub.HfApi(token=token)
    card = _CARD.format(
        name=repo_id,
        networks=len(rec.networks),
        members=len(rec),
        probs=[round(value, 4) for value in rec.probs.tolist()],
        threat="nothing in particular" if rec.threat is None else rec.threat,
    )
    with tempfile.TemporaryDirectory(prefix="randens-") as place:
        folder = rec.save(Path(place) / "ensemble")
        write_atomic(folder / "README.md", card.encode())
        with file_errors("upload", repo_id):
            address = str(api.create_repo(repo_id, private=private, exist_ok=True))
            api.upload_folder(repo_id=repo_id, folder_path=folder, delete_patterns=_FILES)
    return address


@typed(source=PathLike)
def downloaded(
    source: str | os.PathLike[str], *, revision: str | None = None, token: str | None = None
) -> Path:
    """The folder of the repository "user/name", downloaded; a local folder is itself."""
    if Path(source).is_dir():
        return Path(source)
    with file_errors("download", source):
        return Path(
            huggingface_hub.snapshot_download(
                str(source), revision=revision, token=token, allow_patterns=_FILES
            )
        )
