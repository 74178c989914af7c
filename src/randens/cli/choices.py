"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import names as known
from randens.core.errors import InputError

if TYPE_CHECKING:
    from randens.attacks import Attack, Cost
    from randens.threat import Threat
    from randens.witness.store import WitnessStore

__all__ = [
    "Attacks",
    "Data",
    "Device",
    "Eps",
    "Fresh",
    "Limit",
    "Mean",
    "Model",
    "Norm",
    "OptionalRun",
    "RunCode",
    "RunFolder",
    "Seed",
    "Settings",
    "Std",
    "Verify",
    "make_attacks",
    "number",
    "one_of",
    "own_case",
    "own_threat",
    "said",
]

RunFolder = Annotated[
    Path,
    typer.Argument(
        help="A run folder, as `randens quickstart` and `randens train` make them, e.g. runs/quickstart-1.",
        show_default=False,
    ),
]
OptionalRun = Annotated[
    Path | None,
    typer.Argument(
        help="A run folder, e.g. runs/quickstart-1; left out where --model names networks of your own.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Your own network instead of RUN: a TorchScript, ONNX or saved ensemble's file or folder, a name of the "
        "zoo, or package.module:factory, which needs --run-code.",
        show_default=False,
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code", help="Import the module that --model names and call its factory: runs its code."
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        help="With --model: what inputs are normalised by, numbers between commas.", show_default=False
    ),
]
Std = Annotated[
    str | None, typer.Option(help="With --model and --mean: the standard deviations.", show_default=False)
]
Device = Annotated[
    str,
    typer.Option(help="Where members run: auto, cpu, cuda or cuda:N; auto takes a GPU where torch sees one."),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        help=f"An attack by name; repeatable, the worst of all counts. One of: {', '.join(known.ATTACKS)}.",
        show_default=False,
        autocompletion=known.starting(known.ATTACKS),
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="An option of every attack named, e.g. steps=40; repeatable.", show_default=False
    ),
]
Norm = Annotated[
    str | None,
    typer.Option(
        help="linf or l2, instead of the run's; give --eps too.",
        show_default=False,
        autocompletion=known.starting(known.NORMS),
    ),
]
Eps = Annotated[
    str | None,
    typer.Option(
        help="Radius of the perturbations instead of the run's, e.g. 0.03 or 8/255; pixels go from 0 to 1.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help=f"Data set instead of the run's. One of: {', '.join(known.DATA_SETS)}.",
        show_default=False,
        autocompletion=known.starting(known.DATA_SETS),
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Use only so many inputs, the first ones; all by default.", show_default=False),
]
Seed = Annotated[int, typer.Option(help="Decides every random choice of the attacks.")]

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Ignore the witnesses of earlier commands; new ones are kept.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Judge every stored witness again, and not a random sample only.")
]


def number(name: str, text: str | None) -> float | None:
    """A number or a fraction such as 8/255."""
    if text is None:
        return None
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{name} is {text!r}; it must be a number or a fraction, e.g. 0.03 or 8/255"
        ) from None


def own_case(
    model: str, run_code: bool, mean: str | None, std: str | None, data: str | None
) -> tuple[Any, Any]:
    """What --model, --run-code, --mean and --std mean: a model for `randens.evaluate`, and its preprocessing."""
    from randens.evaluation import from_factory

    if data is None:
        raise InputError(
            "--model needs --data: a data set's name, an .npz file with x and y, or a folder of images"
        )
    if (mean is None) != (std is None):
        raise InputError("--mean and --std go together; give both or none")
    pair = None
    if mean is not None and std is not None:
        pair = tuple(
            [number(name, part) for part in text.split(",")]
            for name, text in (("--mean", mean), ("--std", std))
        )
    factory = ":" in model and not Path(model).exists()
    return (from_factory(model, run_code=run_code) if factory else model), pair


def own_threat(norm: str | None, eps: str | None) -> Threat:
    """The threat for networks of one's own: linf with 8/255 unless said otherwise."""
    from randens.threat import Threat, norm_name

    if norm is not None and norm_name(norm) != "linf" and eps is None:
        raise InputError(f"--norm is {norm!r}; give its radius too, with --eps")
    radius = number("--eps", eps)
    return Threat(norm or "linf", 8 / 255 if radius is None else radius)


def one_of(run: Path | None, model: str | None) -> None:
    """Refuse both and neither."""
    if (run is None) == (model is None):
        raise InputError("give either a run folder RUN or networks of your own with --model")


def said(store: WitnessStore, now: Cost, stored: str) -> list[str]:
    """What a command tells about the store: the passes it made itself, what it read, and what was wrong there."""
    made = f"{now.forwards:,} forward and {now.backwards:,} backward member passes in this call"
    return [f"{made}; {stored} in {store.folder}.", *store.notes]


def make_attacks(
    names: list[str] | None, default: tuple[str, ...], threat: Threat, settings: list[str] | None, seed: int
) -> list[Attack]:
    """The attacks named, each with the settings."""
    from randens import attacks

    options = dict(_setting(text) for text in settings or [])
    return [attacks.create(name, threat, seed=seed, **options) for name in names or default]


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InputError(f"--set is {text!r}; it must be name=value, e.g. steps=40")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
