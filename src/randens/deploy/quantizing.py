"""Eight-bit members: smaller files, with their robust accuracy measured again."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens import attacks, models
from randens.attacks import Attack
from randens.attacks.dataset import as_attacks
from randens.core.errors import InputError
from randens.core.progress import Progress, silent, within
from randens.deploy import layout
from randens.deploy.bundle import Bundle
from randens.deploy.exporting import appearing, quiet
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, networks_of
from randens.evaluation import Evaluation, evaluate, transferred
from randens.evaluation.argument_checks import DataLike, fingerprint, labelled

__all__ = ["StraightThrough", "quantize"]

_CHUNK = 32

MEASURED = (
    "The float32 members were attacked as usual. The int8 members have no gradients of their own, so they were judged "
    "on (1) every perturbed input found on the float32 members, (2) the same attacks aimed at the int8 members' own "
    "answers with the float32 members' gradients, (3) random search on the int8 members, which needs no gradients. "
    "Robust accuracies are upper bounds: a stronger attack can only lower them."
)


def quantize(
    bundle: Bundle,
    rec: RandomizedEnsemble,
    path: str | os.PathLike[str],
    *,
    calibration: DataLike,
    test: DataLike,
    attack: Attack | Sequence[Attack],
    progress: Progress | None = None,
) -> Bundle:
    """Write the int8 version of a float32 bundle of `rec` into the new folder `path`.

    Natural and robust accuracy of both versions are measured on `test` and written into the manifest, with
    the attacks.

    Parameters
    ----------
    bundle, rec : Bundle, RandomizedEnsemble
        The export, and the ensemble, which the attack needs.
    path, progress
        As for `export`.
    calibration, test : pair (x, y), Data or loader
        Real inputs, not the test data, that set the ranges of activations; the data on which accuracies are measured.
    attack : Attack or sequence of Attack
        Finds the perturbations on which both versions are evaluated.

    Returns
    -------
    Bundle
        The int8 version.

    Examples
    --------
    >>> import torch, randens
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(4, 3).eval()])
    >>> data = torch.rand(8, 4), torch.arange(8) % 3
    >>> pgd = randens.attacks.create("pgd", randens.Threat("linf", 0.1), steps=2)
    >>> small = quantize(randens.deploy.export(rec, data, "b"), rec, "b8", calibration=data, test=data, attack=pgd)
    >>> small.precision
    'int8'
    """
    report = silent if progress is None else progress
    if bundle.precision != "float32" or bundle.ensemble != fingerprint(rec):
        raise InputError(f"bundle {bundle.path} is not the float32 export of rec; export it first")
    chosen = as_attacks(attack)
    seen = labelled(calibration, rec)
    if seen.split == "test":
        raise InputError("calibration is test data; take the validation split")
    with appearing(path) as folder:
        converted = []
        for index in range(len(bundle.members)):
            report("quantising members", index, len(rec))
            converted.append(_quantized(bundle.read(index), seen.x.numpy()))
        report("quantising members", len(rec), len(rec))
        draft = layout.store(
            folder / "bundle",
            converted,
            probs=bundle.probs,
            classes=bundle.classes,
            input_shape=bundle.input_shape,
            threat=bundle.threat,
            precision="int8",
            ensemble=bundle.ensemble,
            averages=bundle.averages,
        )
        whole, coarse = _measure(draft, rec, test, chosen, report)
        sign_off = {
            **bundle.sign_off,
            "calibration": {"data": seen.name, "split": seen.split, "inputs": len(seen)},
            "accuracy": {
                "data": whole.data,
                "split": whole.split,
                "inputs": whole.n,
                "threat": whole.threat.to_dict(),
                "attacks": [dict(a) for a in coarse.attacks],
                "float32": whole.accuracy.to_json(),
                "int8": coarse.accuracy.to_json(),
                "found_by": coarse.found_by,
                "how": MEASURED,
            },
        }
        dataclasses.replace(draft, sign_off=sign_off, samples=bundle.samples).write()
    return Bundle.open(path)


class StraightThrough(nn.Module):
    """A member whose outputs are those of `answer` and whose gradients are those of `twin`.

    With it any attack can attack quantised members directly (backward pass differentiable approximation).
    """

    def __init__(self, answer: nn.Module, twin: nn.Module) -> None:
        super().__init__()
        self.answer = answer
        self.twin = twin

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            exact: Tensor = self.answer(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return exact
        z: Tensor = self.twin(x)
        # The added term is zero, so the output is exact to the last bit.
        return exact + (z - z.detach()).to(exact.dtype)


def _measure(
    draft: Bundle, rec: RandomizedEnsemble, test: DataLike, chosen: tuple[Attack, ...], report: Progress
) -> tuple[Evaluation, Evaluation]:
    whole = evaluate(rec, test, chosen, deterministic=False, progress=within(report, "float32"))
    assert whole.pool is not None
    networks, parts = networks_of(rec.members)
    pairs = zip(draft.members, networks, strict=True)
    files = [StraightThrough(models.onnx(draft.path / file.file), twin) for file, twin in pairs]
    coarse = RandomizedEnsemble(
        [
            DeterministicEnsemble([files[i] for i in part], member.weights)
            if isinstance(member, DeterministicEnsemble)
            else files[part[0]]
            for member, part in zip(rec.members, parts, strict=True)
        ],
        rec.probs,
        classes=rec.classes,
        threat=rec.threat,
    )
    known = transferred(whole.pool, coarse, test, "transfer from float32")
    random = attacks.create("random", chosen[0].threat, seed=chosen[0].seed)
    measured = evaluate(
        coarse, test, (*chosen, random), pool=known, deterministic=False, progress=within(report, "int8")
    )
    return whole, measured


def _quantized(content: bytes, inputs: NDArray[np.float32]) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    name = onnx.load_from_string(content).graph.input[0].name
    batches = ({name: inputs[start : start + _CHUNK]} for start in range(0, len(inputs), _CHUNK))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives the calibration inputs in small batches."""

        def get_next(self) -> dict[str, Any] | None:
            return next(batches, None)

    with tempfile.TemporaryDirectory() as folder, quiet():
        source, target = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(content)
        quantize_static(
            source,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(target)
