"""`randens attack`: attack a run's ensemble with one attack or several, and keep the witnesses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from randens.cli import choices
from randens.cli.output import show
from randens.core.errors import InputError

if TYPE_CHECKING:
    from randens.evaluation.attack_table import Attacked


@choices.asked(choices.Attacking)
def attack(
    case: choices.Attacking,
    save_images: Annotated[
        Path | None, typer.Option(help="Write a PNG of clean, perturbed and difference there.")
    ] = None,
) -> None:
    """Attack the ensemble of RUN with each attack alone, and keep the witnesses in its folder `witnesses`.

    The default attack is `saddle`. The same command continues an interrupted
    attack and reads the result of a finished one. Under torchrun or srun the
    images are divided among the processes.

    Example: randens attack runs/quickstart-1 --attack arc-r --set steps=40
    --save-images worst.png
    """
    from randens.evaluation.attack_table import attack_all, draw_worst

    opened = case.opened("saddle")
    subject, images, store = opened.subject, opened.images, opened.store
    if save_images is not None:
        # Checked before the work.
        if save_images.suffix.lower() != ".png":
            raise InputError(
                f"--save-images is {str(save_images)!r}; pictures are written as PNG, e.g. worst.png"
            )
        if len(opened.attacks) > 1:
            raise InputError("--save-images shows one attack at a time; give a single --attack")
    with case.running() as (processes, progress):
        subject.rec.to(processes.device)
        results = attack_all(subject.rec, images, opened.attacks, store, progress)
    if not processes.writes:
        return
    if save_images is not None:
        draw_worst(save_images, images, results[-1], subject.rec, subject.threat)
    lines = [
        _table(results, f"{subject.run.path} on {images.name} {case.split}, {len(images)} inputs"),
        *(warning for result in results for warning in result.warnings),
        f"Witnesses and perturbed inputs are in {store.folder}.",
        *store.notes,
        *([] if save_images is None else [f"Pictures are in {save_images}."]),
    ]
    show(results, case.as_json, lines)


def _table(results: list[Attacked], title: str) -> Table:
    table = Table(title=title)
    for name in ("attack", "natural", "robust", "members", "forwards", "backwards"):
        table.add_column(name, justify="left" if name == "attack" else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{100 * result.natural:.2f}",
            f"{100 * result.robust:.2f}",
            " ".join(f"{100 * (1 - r):.1f}" for r in result.member_risks),
            f"{result.forwards / result.inputs:.1f}",
            f"{result.backwards / result.inputs:.1f}",
        )
    table.caption = "accuracies in %, exact expectations; member passes per input"
    return table
