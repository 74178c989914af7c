"""What commands share: options with one meaning everywhere, opening what they name, printing results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from randens.core.errors import FileError, InputError, number, printable
from randens.core.files import plain

if TYPE_CHECKING:
    from randens.attacks import Attack
    from randens.core.runs import Run
    from randens.evaluation.tables import Result
    from randens.threat import Threat
    from randens.witness import WitnessStore

DRAWINGS = (".png", ".svg", ".pdf")
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, a name of the zoo, a saved ensemble, or code that is run: torchscript:PATH, onnx:PATH, "
        "timm:NAME, package.module:factory.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="Instead of the run's: a data set's name, a folder of images, an .npz file."),
]
_Splits = Literal["train", "validation", "test"]
Split = Annotated[_Splits, typer.Option(case_sensitive=False, help="Which part of the data.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only this many of the first inputs.")]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        metavar="NAME",
        help="An attack or a preset (fast, standard, thorough), with options if needed, e.g. pgd:steps=40,seed=1; "
        "repeatable, the worst result counts. `--attack list` shows all.",
    ),
]
Norm = Annotated[
    Literal["linf", "l2", "l1"] | None,
    typer.Option(case_sensitive=False, help="Norm of the perturbations instead of the run's."),
]
Eps = Annotated[
    str | None, typer.Option(help="Radius instead of the run's, e.g. 8/255 (pixels from 0 to 1).")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto uses a CUDA GPU if there is one.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore stored witnesses; new ones are stored.")]
Verify = Annotated[bool, typer.Option("--verify", help="Score every stored witness again.")]
Output = Annotated[
    Path | None, typer.Option(help="Write there: .json, a table (.md, .tex) or a drawing (.png, .svg, .pdf).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def show(result: Any, as_json: bool, lines: Iterable[Any]) -> None:
    """Print a result: itself as JSON for programs, or tables and sentences for people."""
    if as_json:
        # NaN is refused, because it is not JSON.
        typer.echo(json.dumps(plain(result), indent=2, allow_nan=False))
    else:
        print_lines(lines)


def print_lines(lines: Iterable[Any]) -> None:
    """Print tables and sentences; numbers and paths are neither colored nor wrapped."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
    for line in lines:
        for part in line.split("\n") if isinstance(line, str) else [line]:
            console.print(printable(part) if isinstance(part, str) else part)


@dataclass(frozen=True)
class Case:
    """What a command works on. A model that is no run folder has neither `run` nor `store`."""

    name: str
    model: Any
    data: Any
    attacks: tuple[Attack, ...]
    run: Run | None
    store: WitnessStore | None

    @property
    def threat(self) -> Threat:
        """The threat of all attacks."""
        return self.attacks[0].threat

    def show(
        self, result: Result, output: Path | None, as_json: bool, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Print a result and write it, with `extra`: to `output`, as its ending says, or into the run folder."""
        from randens.core.files import write_atomic, write_json

        document = {**result.to_json(), **(extra or {})}
        suffix, written = "", []
        if output is not None:
            suffix, written = output.suffix.lower(), [output]
            if suffix in DRAWINGS:
                result.plot(output)
            elif suffix in (".md", ".tex"):
                text = result.table().latex() if suffix == ".tex" else result.table().markdown()
                write_atomic(output, f"{text}\n".encode())
            else:
                write_json(output, document)
        if self.run is not None and (output is None or suffix in DRAWINGS):
            written.append(self.run.write(result.kind, document))
        lines = [self.name, repr(result), *(f"Written to {path}." for path in written)]
        if now := getattr(result, "now", None):
            lines.insert(2, f"{now} in this call.")
        show(document, as_json, lines)


def open_case(
    model: str,
    *,
    data: str | None = None,
    attack: list[str] | None = None,
    default: tuple[str, ...] = ("standard",),
    norm: str | None = None,
    eps: str | float | None = None,
    fresh: bool = False,
    verify: bool = False,
) -> Case:
    """Load the model, its data and the attacks; a run folder knows its data and its threat."""
    specs = [_attack(text) for text in attack or default]
    from randens import attacks
    from randens.attacks.base import as_attacks
    from randens.evaluation.inputs import as_rec
    from randens.witness import WitnessStore

    made, data, run = open_model(model, data)
    threat = as_attacks("fgsm", eps=eps, norm=norm, known=as_rec(made).threat)[0].threat
    chosen = tuple(attacks.create(name, threat, **options) for name, options in specs)
    store = None if run is None else WitnessStore(run.path, fresh=fresh, verify=verify)
    # A run is opened by the function itself, which reads there which split chose what.
    return Case(model, made if run is None else run.path, data, chosen, run, store)


def open_model(model: str, data: str | None) -> tuple[Any, str, Run | None]:
    """The model, the name of its data, and the run folder that it is."""
    from randens import zoo
    from randens.core.runs import Run
    from randens.evaluation.inputs import load_model, run_data

    path, run = Path(model), None
    if path.is_dir() and not (path / "ensemble.json").is_file():
        run = Run.open(path)
        if not run.ensemble.is_dir():
            raise FileError(f"{path} holds no ensemble yet; the run that makes it has not finished")
        data = data or run_data(run)
    elif model.lower() in zoo.names() and not path.exists():
        model, data = model.lower(), data or run_data(Run.open(zoo.path(model)))
    made = load_model(model)
    if data is None:
        raise InputError(f"{model} names no data; give --data: a name, a folder of images or an .npz file")
    return made, data if Path(data).exists() else data.lower(), run


def tries(text: str) -> float:
    """One entry of --attempts."""
    if text.strip() == "inf":
        return float("inf")
    value = number("--attempts", text)
    return int(value) if value.is_integer() else value


def _attack(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of an attack from e.g. ``pgd:steps=40,restarts=2``; "list" shows all names and ends."""
    name, _, rest = text.partition(":")
    if text == "list":
        _list_attacks()
    options = {}
    for part in rest.split(",") if rest else []:
        option, sign, value = part.partition("=")
        if not sign or not option:
            raise InputError(f"--attack is {text!r}; options are name=value, e.g. pgd:steps=40,restarts=2")
        options[option.strip()] = _value(value.strip())
    return name.strip().lower(), options


def _value(text: str) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


def _list_attacks() -> None:
    from randens.attacks.base import REGISTRY

    summaries = {name: (kind.__doc__ or "").partition("\n")[0] for name, (kind, _) in REGISTRY.items()}
    print_lines(f"{name:<20} {summaries[name]}" for name in sorted(summaries))
    raise typer.Exit
