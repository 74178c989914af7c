"""Export from torch to a bundle of ONNX files, after a comparison with torch on real data."""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import io
import logging
import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from randens.core.errors import FileError, ModelError, whole
from randens.core.files import new_folder
from randens.core.progress import Progress, silent
from randens.data import Data
from randens.deploy import layout
from randens.deploy.bundle import Average, Bundle, Sample
from randens.deploy.predictor import Predictor
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, evaluating, networks_of
from randens.evaluation.argument_checks import DataLike, fingerprint, labelled

__all__ = ["appearing", "class_names", "export", "quiet"]

_OPSET = 20
_TOLERANCE = 1e-4  # of the largest logit: rounding stays near 1e-6, a wrong graph does not
_CHUNK = 256
_MOST_SAMPLES = 64


def export(
    rec: RandomizedEnsemble,
    data: DataLike,
    path: str | os.PathLike[str],
    *,
    samples: int = 0,
    progress: Progress | None = None,
) -> Bundle:
    """Write `rec` as a bundle into the new folder `path`: one ONNX file per member, and a manifest.

    Every member's logits are compared with torch's on `data`. The largest difference goes into the manifest;
    if it is more than rounding, nothing is written. Use real data: random numbers exercise little of a network.

    Parameters
    ----------
    rec : RandomizedEnsemble
        The ensemble to export.
    data : pair (x, y), Data or loader
        The data for the comparison.
    path : path
        A folder that does not exist yet.
    samples : int
        Pictures of `data` that go into the bundle for the server's page; everyone who has the bundle can see
        them.
    progress : callable, optional
        Called as progress(task, done, total).

    Returns
    -------
    Bundle
        As it is on disk.

    Examples
    --------
    >>> import torch, randens
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(4, 3).eval()])
    >>> bundle = export(rec, (torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])), "bundle")
    >>> bundle.precision, bundle.input_shape
    ('float32', (4,))
    """
    whole("samples", samples, 0, _MOST_SAMPLES)
    report = silent if progress is None else progress
    inputs = labelled(data, rec)
    shape = tuple(inputs.x.shape[1:])
    with appearing(path) as folder:
        models = []
        # A network that several members average is one file.
        networks, parts = networks_of(rec.members)
        for index, network in enumerate(networks):
            report("exporting members", index, len(networks))
            models.append(_to_onnx(network, shape, index))
        report("exporting members", len(networks), len(networks))
        averages = []  # none if every file is a member
        if any(isinstance(member, DeterministicEnsemble) for member in rec.members):
            for member, part in zip(rec.members, parts, strict=True):
                shares = member.weights.tolist() if isinstance(member, DeterministicEnsemble) else [1.0]
                averages.append(Average(of=tuple(part), weights=tuple(shares)))
        draft = layout.store(
            folder / "bundle",
            models,
            probs=rec.probs.tolist(),
            classes=class_names(rec, data),
            input_shape=shape,
            threat=None if rec.threat is None else rec.threat.to_dict(),
            precision="float32",
            ensemble=fingerprint(rec),
            averages=averages,
        )
        signed = dataclasses.replace(
            draft,
            sign_off={"parity": _parity(draft, rec, inputs, report)},
            samples=_samples(inputs, samples, draft.bounds),
        )
        signed.write()
    return Bundle.open(path)


@contextlib.contextmanager
def appearing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder, whose subfolder "bundle" becomes `path` if no error occurs."""
    target = Path(path)
    if target.exists():
        raise FileError(f"{target} exists already; choose another folder or remove it first")
    folder = new_folder(target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp"))
    try:
        yield folder
        os.replace(folder / "bundle", target)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of the exporter and the quantiser; their results are checked instead."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def class_names(rec: RandomizedEnsemble, data: DataLike) -> tuple[str, ...]:
    """The ensemble's, else the data's, else numbers."""
    if rec.classes is not None:
        return rec.classes
    if isinstance(data, Data) and data.classes:
        return data.classes
    shape = labelled(data, rec).x[:1]
    with evaluating(rec), torch.no_grad():
        return tuple(map(str, range(rec.logits(shape.to(rec.device)).shape[2])))


def _samples(inputs: Data, count: int, bounds: tuple[float, float] | None) -> tuple[Sample, ...]:
    """The first `count` pictures, of every class in turn; none where inputs are no pictures."""
    shape = inputs.x.shape[1:]
    if not count or len(shape) != 3 or shape[0] not in (1, 3) or bounds != (0.0, 1.0):
        return ()
    # Imported here because arrays are exported without it.
    from PIL import Image

    labels = inputs.y.tolist()
    turns = [labels[:place].count(label) for place, label in enumerate(labels[: 100 * count])]
    chosen = sorted(range(len(turns)), key=lambda place: (turns[place], labels[place]))[:count]
    found = []
    for place in chosen:
        pixels = (inputs.x[place] * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).numpy()
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", optimize=True)
        png = base64.b64encode(file.getvalue()).decode("ascii")
        found.append(Sample(label=labels[place], png=png))
    return tuple(found)


def _to_onnx(member: nn.Module, shape: tuple[int, ...], index: int) -> onnx.ModelProto:
    module = copy.deepcopy(member).cpu().float().eval()
    for part in list(module.modules()):
        for name, child in part.named_children():
            as_convolution = getattr(child, "as_convolution", None)
            if as_convolution is not None:
                setattr(part, name, as_convolution())
    # Two inputs, because a batch of one would become a constant.
    example = torch.rand(2, *shape)
    try:
        with quiet():
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
        model = simplified(program.model_proto)
    except Exception as error:
        # The exporter passes on any exception of the network's code and of torch's tracing.
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"member {index}, a {type(member).__name__}, cannot be exported: {reason}"
        ) from error
    if model.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value"):
        raise ModelError(
            f"member {index}, a {type(member).__name__}, cannot be exported: its code fixes the batch size "
            "(len(x) does, x.shape[0] does not)"
        )
    return model


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function with constants folded and batch normalisation merged into convolutions.

    Only standard operators are used, so the file is portable, and unchanged weights can be mapped from it.
    """
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "simplified.onnx")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = place
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result = onnx.load(place)
    used = {node.domain for node in result.graph.node}
    kept = [entry for entry in result.opset_import if entry.domain in used or entry.domain in ("", "ai.onnx")]
    del result.opset_import[:]
    result.opset_import.extend(kept)
    result.producer_name = "randens"
    return result


def _parity(draft: Bundle, rec: RandomizedEnsemble, inputs: Data, report: Progress) -> dict[str, Any]:
    """Compare every member's logits on every input; more than rounding is an error."""
    predictor = Predictor(draft)
    worst, largest, changed = 0.0, 0.0, 0
    with evaluating(rec), torch.no_grad():
        for start in range(0, len(inputs), _CHUNK):
            report("comparing with torch", start, len(inputs))
            x = inputs.x[start : start + _CHUNK]
            ours, theirs = predictor.logits(x.numpy()), rec.logits(x.to(rec.device)).cpu().numpy()
            worst = max(worst, float(np.abs(ours - theirs).max()))
            largest = max(largest, float(np.abs(theirs).max()))
            changed += int((ours.argmax(axis=2) != theirs.argmax(axis=2)).sum())
    report("comparing with torch", len(inputs), len(inputs))
    if not worst <= _TOLERANCE * max(1.0, largest):
        raise ModelError(
            f"the exported members differ from torch by up to {worst:.2g} where logits reach {largest:.2g}; "
            "this is more than rounding, so nothing was written"
        )
    return {
        "data": inputs.name,
        "split": inputs.split,
        "inputs": len(inputs),
        "max_difference": worst,
        "largest_logit": largest,
        "tolerance": _TOLERANCE,
        "labels_changed": changed,
    }
