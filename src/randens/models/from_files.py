"""Members from files: TorchScript and ONNX.

An ONNX file gives no gradients. Its module raises an error when a gradient is requested, instead of returning
a zero gradient.
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
from randens.models.outputs import adapt, logits_of

__all__ = ["OnnxMember", "onnx", "torchscript"]


def torchscript(path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> nn.Module:
    """A member from a TorchScript file.  Gradients work if the file was saved with them.

    Parameters
    ----------
    path : str or path
        A TorchScript file.
    device : str or torch.device
        Where to load it.

    Returns
    -------
    nn.Module
        A member.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/net.pt"
    >>> torch.jit.save(torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4)), path)
    >>> torchscript(path)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{file} does not exist; give a TorchScript file")
    try:
        module = torch.jit.load(str(file), map_location=device)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise FileError(f"{file} is not a TorchScript file ({str(error).splitlines()[0]})") from error
    return adapt(module)


class OnnxMember(nn.Module):
    """An ONNX classifier run by ONNX Runtime on the CPU; a request for gradients raises an error.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        Of one input and one output.
    file : Path
        For errors.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from types import SimpleNamespace
    >>> given = SimpleNamespace(name="x", shape=["n", 4])          # as onnxruntime.InferenceSession describes it
    >>> run = lambda names, inputs: [inputs["x"] @ np.eye(4, 3, dtype=np.float32)]
    >>> session = SimpleNamespace(get_inputs=lambda: [given], run=run)
    >>> tuple(OnnxMember(session, Path("net.onnx"))(torch.rand(2, 4)).shape)
    (2, 3)
    """

    def __init__(self, session: Any, file: Path) -> None:
        super().__init__()
        self._session = session
        self._file = file
        self._input: str = session.get_inputs()[0].name
        size = session.get_inputs()[0].shape[0]
        # A file exported without a dynamic batch takes exactly this many images.
        self._batch: int | None = size if isinstance(size, int) and size > 0 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            raise ModelError(
                f"{self._file} is an ONNX file and gives no gradients; "
                "attack it with a method that needs none, or use the original network"
            )
        images = np.ascontiguousarray(x.detach().cpu().float().numpy())
        if self._batch is None:
            outputs = self._run(images)
        else:
            starts = range(0, max(1, len(images)), self._batch)
            parts = [images[start : start + self._batch] for start in starts]
            outputs = np.concatenate([self._run(part)[: len(part)] for part in parts])
        return logits_of(torch.from_numpy(outputs), len(x), self._file.name).to(x.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxMember:
        # A session cannot be copied and holds nothing that changes.
        return self

    def _run(self, images: Any) -> Any:
        missing = 0 if self._batch is None else self._batch - len(images)
        if missing:
            images = np.concatenate([images, np.repeat(images[:1], missing, axis=0)])
        try:
            return self._session.run(None, {self._input: images})[0]
        except Exception as error:
            # ONNX Runtime's exceptions have no public base class.
            raise InputError(
                f"{self._file} cannot take images of shape {images.shape[1:]}: {error}"
            ) from error


def onnx(path: str | os.PathLike[str]) -> OnnxMember:
    """A member from an ONNX file whose first input is the images and first output the logits.

    Parameters
    ----------
    path : str or path
        An ONNX file.

    Returns
    -------
    OnnxMember
        A member without gradients.

    Examples
    --------
    >>> import torch
    >>> _ = torch.onnx.export(torch.nn.Linear(4, 3).eval(), (torch.rand(2, 4),), "net.onnx", verbose=False)
    >>> tuple(onnx("net.onnx")(torch.rand(5, 4)).shape)
    (5, 3)
    """
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{file} does not exist; give an ONNX file")
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise ModelError(
            f"{file} needs ONNX Runtime; install it with `pip install 'randens[deploy]'`"
        ) from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's exceptions have no public base class.
        raise FileError(f"{file} is not an ONNX file that ONNX Runtime can read ({error})") from error
    return OnnxMember(session, file)
