"""`randens export`: write an ensemble as ONNX files that need no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli import choices
from randens.cli.choices import Json, show
from randens.core.errors import InputError
from randens.core.progress import bars


def export(
    model: choices.Model,
    output: Annotated[Path | None, typer.Option(help="The new folder; bundle of a run by default.")] = None,
    member: Annotated[int | None, typer.Option(help="Export this member alone.")] = None,
    average: Annotated[
        int | None, typer.Option(help="Export averages of this many members; all of them: one average.")
    ] = None,
    uniform: Annotated[bool, typer.Option("--uniform", help="Sample all members alike.")] = False,
    data: choices.Data = None,
    as_json: Json = False,
) -> None:
    """Export what is to be deployed from MODEL: one ONNX file per network and a manifest.

    It needs the extra `deploy`. By default the ensemble is exported as it is
    sampled; `randens advise` prints the options that export what it recommends.
    Every network is compared with torch on validation data. The new folder is
    for `randens serve` and randens.deploy.Predictor.

    Example: randens export runs/quickstart-1
    """
    from randens.data import as_data
    from randens.deploy.exporting import export as export_bundle
    from randens.evaluation.inputs import as_rec, image_size

    made, named, run = choices.open_model(model, data)
    if output is None and run is None:
        raise InputError(f"{model} is no run folder; name the new folder with --output")
    target = output or Path(model) / "bundle"
    rec = as_rec(made)
    inputs = as_data(named, split="validation", size=image_size(rec))
    probs = [1 / len(rec)] * len(rec) if uniform else None
    with bars() as progress:
        bundle = export_bundle(
            rec, inputs, target, member=member, average=average, probs=probs, progress=progress
        )
    size, parity = sum(file.size for file in bundle.files) / 1e6, bundle.parity
    lines = [
        f"{bundle.path}: {len(bundle.files)} networks, {len(bundle.members)} to sample from, {size:.2f} MB",
        f"  largest difference from torch {parity['max_difference']:.2g} on {parity['inputs']} inputs of "
        f"{parity['data']} {parity['split']} (logits reach {parity['largest_logit']:.3g}); "
        f"{parity['labels_changed']} labels changed",
        f"  checksum {bundle.checksum}",
        f"Next: randens serve {bundle.path}",
    ]
    show({"path": bundle.path, "checksum": bundle.checksum, **bundle.to_json()}, as_json, lines)
