"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from randens.cli import names as known
from randens.cli.output import Json
from randens.cli.progress_bars import bars
from randens.core.errors import InputError

if TYPE_CHECKING:
    from randens.attacks import Attack, Cost
    from randens.core.distributed import Workers
    from randens.core.progress import Progress
    from randens.data import ImageData
    from randens.evaluation.run_folder import Subject
    from randens.threat import Threat
    from randens.witness.store import WitnessStore

__all__ = [
    "Attacking",
    "Attacks",
    "Device",
    "Evaluating",
    "InputOptions",
    "Limit",
    "Opened",
    "OnRun",
    "RunFolder",
    "Seed",
    "Settings",
    "asked",
    "make_attacks",
    "number",
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
Split = Annotated[
    str,
    typer.Option(
        help="Which part of the data: train, validation or test.", autocompletion=known.starting(known.SPLITS)
    ),
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


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What every command is asked that runs members on data."""

    split: Split = "test"
    limit: Limit = None
    data: Data = None
    norm: Norm = None
    eps: Eps = None
    device: Device = "auto"
    seed: Seed = 0
    fresh: Fresh = False
    verify: Verify = False
    as_json: Json = False

    def subject(self, run: Path, eps: float | None = None) -> Subject:
        """The run folder, with the data and the threat that were asked for."""
        from randens.evaluation.run_folder import open_subject

        radius = number("--eps", self.eps) if eps is None else eps
        return open_subject(run, data=self.data, norm=self.norm, eps=radius)

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[Workers, Progress]]:
        """The processes and the device that share the work, and its progress on the screen."""
        from randens.core.distributed import workers

        with workers(self.device) as crew, bars() as progress:
            yield crew, progress


@dataclass(frozen=True, kw_only=True)
class OnRun(InputOptions):
    """The same, of a command about one run folder."""

    run: RunFolder


@dataclass(frozen=True, kw_only=True)
class Attacking(OnRun):
    """The same, of a command that attacks it."""

    attack: Attacks = None
    settings: Settings = None

    def opened(self, *default: str) -> Opened:
        """Everything that attacks need; `default` names them where none is asked for."""
        subject = self.subject(self.run)
        return Opened(
            subject,
            subject.load(self.split, self.limit),
            make_attacks(self.attack, default, subject.threat, self.settings, self.seed),
            subject.store(fresh=self.fresh, verify=self.verify),
        )


@dataclass(frozen=True, kw_only=True)
class Evaluating(InputOptions):
    """What a command is asked that takes a run folder or networks of one's own."""

    run: OptionalRun = None
    model: Model = None
    run_code: RunCode = False
    mean: Mean = None
    std: Std = None
    attack: Attacks = None
    settings: Settings = None

    def check(self) -> None:
        """Refuse both kinds and neither."""
        if (self.run is None) == (self.model is None):
            raise InputError("give either a run folder RUN or networks of your own with --model")
        if self.model is not None and self.data is None:
            raise InputError(
                "--model needs --data: a data set's name, an .npz file with x and y, or a folder of images"
            )

    def own(self) -> tuple[Any, Any]:
        """What --model, --run-code, --mean and --std mean: a model for `randens.evaluate`, and its preprocessing."""
        from randens.evaluation import from_factory

        assert self.model is not None
        if (self.mean is None) != (self.std is None):
            raise InputError("--mean and --std go together; give both or none")
        pair = None
        if self.mean is not None and self.std is not None:
            pair = tuple(
                [number(name, part) for part in text.split(",")]
                for name, text in (("--mean", self.mean), ("--std", self.std))
            )
        factory = ":" in self.model and not Path(self.model).exists()
        return (from_factory(self.model, run_code=self.run_code) if factory else self.model), pair

    def threat(self) -> Threat:
        """The threat for networks of one's own: linf with 8/255 unless said otherwise."""
        from randens.threat import Threat, norm_name

        if self.norm is not None and norm_name(self.norm) != "linf" and self.eps is None:
            raise InputError(f"--norm is {self.norm!r}; give its radius too, with --eps")
        radius = number("--eps", self.eps)
        return Threat(self.norm or "linf", 8 / 255 if radius is None else radius)


@dataclass(frozen=True)
class Opened:
    """A run folder, its inputs, the attacks on them and the store of what is known."""

    subject: Subject
    images: ImageData
    attacks: list[Attack]
    store: WitnessStore


def asked(
    kind: type[InputOptions], *, without: tuple[str, ...] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the first parameter of a command is a `kind`, whose fields become the command's options.

    Fields `without` are not asked for; `defaults` are this command's own.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(kind, include_extras=True)
        options = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[field.name],
                default=defaults.get(
                    field.name,
                    inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                ),
            )
            # What is particular to a command comes first in its help.
            for field in sorted(dataclasses.fields(kind), key=lambda field: hasattr(InputOptions, field.name))
            if field.name not in without
        ]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(kind(**{option.name: given.pop(option.name) for option in options}), **given)

        named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        # Typer reads the options from here.
        called.__signature__ = inspect.Signature([*named, *options])  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in (*named, *options)}
        return called

    return decorate


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
