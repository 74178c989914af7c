"""Export from torch to a bundle of ONNX files, after a comparison with torch on real data."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import onnx
import onnxscript  # noqa: F401 - torch.onnx needs it, and would say so late
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from randens.core.devices import settled
from randens.core.errors import InputError, ModelError, PathLike, typed, whole
from randens.core.files import atomic_folder, sha256, write_atomic
from randens.core.progress import Progress, silent
from randens.core.runs import ThreatDocument, versions
from randens.data import Data, as_data
from randens.deploy.predictor import Bundle, Member, NetworkFile, Predictor
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, evaluating, networks_of
from randens.evaluation.inputs import as_logit_members, as_rec
from randens.witness.fingerprints import fingerprint

__all__ = ["export"]

_OPSET = 20
_TOLERANCE = 1e-4  # of the largest logit: rounding stays near 1e-6, a wrong graph does not
_CHUNK = 256


@typed(path=PathLike, progress=Callable | None)
@settled()
def export(
    model: Any,
    data: Any,
    path: str | os.PathLike[str],
    *,
    member: int | None = None,
    average: int | None = None,
    probs: ArrayLike | Tensor | None = None,
    preprocessing: Any = None,
    progress: Progress | None = None,
) -> Bundle:
    """Write `model` as a bundle into the new folder `path`: one ONNX file per network, and a manifest.

    Every member's logits are compared with torch's on `data`. The largest difference goes into the manifest;
    if it is more than rounding, nothing is written. Use real data: random numbers exercise little of a network.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, ensemble, str or path
        What `randens.evaluate` takes. A `DeterministicEnsemble` is served as the average that it is.
    data : pair (x, y), Data or loader
        The data for the comparison.
    path : path
        A folder that does not exist yet.
    member : int, optional
        Export this member alone.
    average : int, optional
        Export averages of this many members, sampled at random for every input; the number of members averages all.
    probs : array, optional
        α instead of the ensemble's own.
    preprocessing : optional
        As for `randens.evaluate`; it becomes part of the ONNX files.
    progress : callable, optional
        Called as progress(task, done, total).

    Returns
    -------
    Bundle
        As it is on disk.

    Examples
    --------
    >>> import torch, randens
    >>> nets = [torch.nn.Linear(4, 3).eval() for _ in range(3)]
    >>> bundle = export(nets, (torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])), "bundle", average=2)
    >>> len(bundle.files), len(bundle.members), bundle.input_shape
    (3, 3, (4,))
    """
    rec = _chosen(as_rec(model, probs=probs, preprocessing=preprocessing), member, average)
    report = silent if progress is None else progress
    inputs = as_data(data)
    rec = as_logit_members(rec, inputs.x)
    with evaluating(rec), torch.no_grad():
        count = rec.logits(inputs.x[:1].to(rec.device)).shape[2]
    shape = tuple(inputs.x.shape[1:])
    with atomic_folder(path) as folder:
        # A network that several members average is one file.
        networks, parts = networks_of(rec.members)
        files = []
        for index, network in enumerate(networks):
            report("exporting networks", index, len(networks))
            content = _to_onnx(network, shape, index)
            files.append(
                NetworkFile(name=f"network-{index:02d}.onnx", sha256=sha256(content), size=len(content))
            )
            write_atomic(folder / files[-1].name, content)
        report("exporting networks", len(networks), len(networks))
        members = []
        for module, part in zip(rec.members, parts, strict=True):
            weights = module.weights.tolist() if isinstance(module, DeterministicEnsemble) else [1.0]
            members.append(Member(files=tuple(part), weights=tuple(weights)))
        draft = Bundle(
            path=folder,
            probs=tuple(rec.probs.tolist()),
            classes=rec.classes or inputs.classes or tuple(map(str, range(count))),
            input_shape=shape,
            threat=None if rec.threat is None else ThreatDocument.model_validate(rec.threat.to_dict()),
            files=tuple(files),
            members=tuple(members),
            ensemble=fingerprint(rec),
            parity={},
            versions={**versions(), **{name: metadata.version(name) for name in ("onnx", "onnxruntime")}},
        )
        draft.model_copy(update={"parity": _parity(draft, rec, inputs, report)}).write()
    return Bundle.open(path)


def _chosen(rec: RandomizedEnsemble, member: int | None, average: int | None) -> RandomizedEnsemble:
    """The ensemble that is shipped: as it is, one member, or averages of k."""
    if member is not None and average is not None:
        raise InputError(f"member is {member} and average is {average}; give one of them")
    if average is not None:
        return rec.subsets(average)
    if member is None:
        return rec
    whole("member", member, 0, len(rec) - 1)
    return RandomizedEnsemble([rec.members[member]], classes=rec.classes, threat=rec.threat)


def _to_onnx(network: nn.Module, shape: tuple[int, ...], index: int) -> bytes:
    module = copy.deepcopy(network).cpu().float().eval()
    # Two inputs, because a batch of one would become a constant.
    example = torch.zeros(2, *shape, dtype=torch.float32)
    name = f"network {index}, a {type(network).__name__},"
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        # Its messages are silenced; the result is checked instead.
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                opset_version=_OPSET,
                input_names=["inputs"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
        assert program is not None
        graph: onnx.ModelProto = program.model_proto
    except Exception as error:
        # The exporter wraps any exception of the network's code and of torch's tracing; the innermost one says why.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ModuleNotFoundError):
            raise cause from None
        reason = f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
        raise ModelError(f"{name} cannot be exported: {reason}") from error
    finally:
        logger.setLevel(level)
    if graph.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value"):
        raise ModelError(f"{name} cannot be exported: its code fixes the batch size, e.g. by len(x)")
    return graph.SerializeToString()


def _parity(draft: Bundle, rec: RandomizedEnsemble, inputs: Data, report: Progress) -> dict[str, Any]:
    """Compare every member's logits on every input; more than rounding is an error."""
    predictor = Predictor(draft)
    worst, largest, changed = 0.0, 0.0, 0
    with evaluating(rec), torch.no_grad():
        for start in range(0, len(inputs), _CHUNK):
            report("comparing with torch", start, len(inputs))
            x = inputs.x[start : start + _CHUNK]
            ours, theirs = predictor.logits(x.numpy()), rec.logits(x.to(rec.device)).cpu().numpy()
            worst = float(np.maximum(worst, np.abs(ours - theirs).max()))  # NaN stays
            largest = max(largest, float(np.abs(theirs).max()))
            changed += int((ours.argmax(axis=2) != theirs.argmax(axis=2)).sum())
    report("comparing with torch", len(inputs), len(inputs))
    if not worst <= _TOLERANCE * max(1.0, largest):
        raise ModelError(
            f"the exported members differ from torch by up to {worst:.2g} where logits reach {largest:.2g}; "
            "this is more than rounding (do they answer at random?), so nothing was written"
        )
    about = {"data": inputs.name, "split": inputs.split, "inputs": len(inputs), "tolerance": _TOLERANCE}
    return {**about, "max_difference": worst, "largest_logit": largest, "labels_changed": changed}
