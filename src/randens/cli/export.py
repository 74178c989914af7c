"""`randens export`: write the ensemble of a run as ONNX files that need no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import choices
from randens.cli.output import show
from randens.cli.progress_bars import bars

if TYPE_CHECKING:
    from randens.deploy import Bundle


@choices.asked(choices.Attacking, without=("split", "fresh", "verify"), limit=256)
def export(
    case: choices.Attacking,
    output: Annotated[Path | None, typer.Option(help="The new folder; RUN/bundle by default.")] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write an int8 version beside it, and attack both.")
    ] = False,
    samples: Annotated[
        int, typer.Option(help="Validation pictures to put into the bundle for the page of `serve`.")
    ] = 10,
) -> None:
    """Export the ensemble of RUN: one ONNX file per member and a manifest, compared with torch on validation data.

    It needs the extra `deploy`. With --int8, accuracies of both versions are
    measured on --limit test inputs under --attack. The new folder is for
    `randens serve` and randens.deploy.Predictor.

    Example: randens export runs/quickstart-1
    """
    from randens.deploy.exporting import export as export_bundle
    from randens.deploy.quantizing import quantize
    from randens.models import pick_device

    # The requirements of int8 are checked before the work.
    opened, device = case.opened("pgd", "arc-r"), pick_device(case.device)
    subject = opened.subject
    target = output or subject.run.path / "bundle"
    real = subject.load("validation")
    with bars() as progress:
        made = [export_bundle(subject.rec, real, target, samples=samples, progress=progress)]
        if int8:
            coarse = quantize(
                made[0],
                subject.rec.to(device),
                target.with_name(f"{target.name}-int8"),
                calibration=real,
                test=opened.images,
                attack=opened.attacks,
                progress=progress,
            )
            made.append(coarse)
    documents = [{"path": b.path, "checksum": b.checksum, **b.to_json()} for b in made]
    lines = [line for bundle in made for line in _lines(bundle)]
    show(documents, case.as_json, [*lines, f"Next: randens serve {made[-1].path}"])


def _lines(bundle: Bundle) -> Iterator[str]:
    size = sum(member.size for member in bundle.members) / 1e6
    yield f"{bundle.path}: {len(bundle.probs)} members, {bundle.precision}, opset {bundle.opset}, {size:.2f} MB"
    parity: dict[str, Any] = bundle.sign_off["parity"]
    accuracy: dict[str, Any] | None = bundle.sign_off.get("accuracy")
    if accuracy is None:
        yield (
            f"  largest difference from torch {parity['max_difference']:.2g} on {parity['inputs']} inputs of "
            f"{parity['data']} {parity['split']} (logits reach {parity['largest_logit']:.3g}); "
            f"{parity['labels_changed']} labels changed"
        )
    else:
        for precision in ("float32", "int8"):
            natural, robust = (100 * accuracy[precision][kind]["value"] for kind in ("natural", "robust"))
            yield f"  {precision:<8} natural {natural:.1f} %, robust {robust:.1f} %"
        yield f"  on {accuracy['inputs']} inputs of {accuracy['data']} {accuracy['split']}. {accuracy['how']}"
    yield f"  checksum {bundle.checksum}"
