"""`randens export`: write the ensemble of a run as ONNX files that need no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli.output import Json, show
from randens.core.progress import bars


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, e.g. runs/quickstart-1.")],
    output: Annotated[Path | None, typer.Option(help="The new folder; RUN/bundle by default.")] = None,
    member: Annotated[int | None, typer.Option(help="Export this member alone.")] = None,
    average: Annotated[
        int | None, typer.Option(help="Export averages of this many members; all of them: one average.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data for the comparison instead of the run's.")] = None,
    as_json: Json = False,
) -> None:
    """Export what is to be deployed from RUN: one ONNX file per network and a manifest.

    It needs the extra `deploy`. By default the sampled ensemble is exported;
    --member and --average export what `randens advise` recommends instead. Every
    network is compared with torch on validation data. The new folder is for
    `randens serve` and randens.deploy.Predictor.

    Example: randens export runs/quickstart-1
    """
    from randens.core.runs import Run
    from randens.data import as_data
    from randens.deploy.exporting import export as export_bundle
    from randens.ensemble import load
    from randens.evaluation.loading import run_data

    opened = Run.open(run)
    target = output or opened.path / "bundle"
    inputs = as_data(data or run_data(opened), split="validation")
    with bars() as progress:
        bundle = export_bundle(
            load(opened.ensemble), inputs, target, member=member, average=average, progress=progress
        )
    size, parity = sum(file.size for file in bundle.files) / 1e6, bundle.parity
    lines = [
        f"{bundle.path}: {len(bundle.files)} networks, {len(bundle.members)} to draw from, {size:.2f} MB",
        f"  largest difference from torch {parity['max_difference']:.2g} on {parity['inputs']} inputs of "
        f"{parity['data']} {parity['split']} (logits reach {parity['largest_logit']:.3g}); "
        f"{parity['labels_changed']} labels changed",
        f"  checksum {bundle.checksum}",
        f"Next: randens serve {bundle.path}",
    ]
    show({"path": bundle.path, "checksum": bundle.checksum, **bundle.to_json()}, as_json, lines)
