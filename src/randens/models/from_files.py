"""Members from TorchScript and ONNX files, which are code.

A TorchScript file can read and write any file of yours, while it is loaded already, and both kinds can run forever:
load only files that you would run as programs. A file is loaded only where it is named as code, by these functions or
as ``torchscript:PATH`` and ``onnx:PATH``; saved ensembles are safetensors, which hold numbers and no code.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from randens.core.errors import FileError, InputError, ModelError
from randens.core.files import open_file, sha256
from randens.models.outputs import adapt, logits_of

_LARGEST = 1 << 36
_LARGEST_BATCH = 1 << 16


def torchscript(path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> nn.Module:
    """A member from a TorchScript file, whose code runs: load only what you trust. Gradients work.

    >>> torch.jit.save(torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4)), "net.pt")
    >>> torchscript("net.pt")(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    with open_file(path, _LARGEST) as file:
        try:
            module = torch.jit.load(file, map_location=device)  # type: ignore[no-untyped-call]
        # Damaged files raise whatever their reader meets.
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise FileError(f"{path} is not a TorchScript file ({reason})") from error
    return adapt(module)


class OnnxMember(nn.Module):
    """An ONNX classifier run by ONNX Runtime on the CPU. Its logits have no gradients, which attacks flag."""

    def __init__(self, session: Any, file: Path) -> None:
        super().__init__()
        self._session = session
        self._file = file
        self.sha256 = ""  # of the file, by which a witness store knows it
        self.training = False
        inputs = session.get_inputs()
        if not inputs or not inputs[0].shape:
            raise FileError(f"{file} has no input of shape [n, ...]")
        self._input: str = inputs[0].name
        size = inputs[0].shape[0]
        # A file exported without a dynamic batch takes exactly this many images.
        self._batch: int | None = size if isinstance(size, int) and size > 0 else None
        if self._batch is not None and self._batch > _LARGEST_BATCH:
            raise FileError(f"{file} takes batches of {self._batch} inputs; at most {_LARGEST_BATCH} are run")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = np.ascontiguousarray(x.detach().cpu().float().numpy())
        step = self._batch or max(1, len(images))
        parts = [images[start : start + step] for start in range(0, max(1, len(images)), step)]
        outputs = np.concatenate([self._run(part) for part in parts])
        return logits_of(torch.from_numpy(outputs), len(x), self._file.name).to(x.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxMember:
        # A session cannot be copied and holds nothing that changes.
        return self

    def _run(self, images: Any) -> Any:
        missing = 0 if self._batch is None else self._batch - len(images)
        if missing:
            images = np.concatenate([images, np.repeat(images[:1], missing, axis=0)])
        try:
            outputs = self._session.run(None, {self._input: images})[0]
            return outputs[:-missing] if missing else outputs
        # ONNX Runtime's exceptions have no public base class.
        except Exception as error:
            raise InputError(
                f"{self._file} cannot take inputs of shape {images.shape[1:]}: {error}"
            ) from error


def onnx(path: str | os.PathLike[str]) -> OnnxMember:
    """A member from an ONNX file, which may run forever: load only what you trust. It gives no gradients.

    Its first input is the images, its first output the logits.
    """
    with open_file(path, _LARGEST) as file:
        checksum = sha256(file.read())
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise ModelError(f"{path} needs ONNX Runtime; run `pip install '.[deploy]'` in a clone") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        # By its path, because weights may lie in files beside it.
        session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise FileError(f"{path} is not an ONNX file that ONNX Runtime can read ({error})") from error
    member = OnnxMember(session, Path(path))
    member.sha256 = checksum
    return member
