"""Options that several commands share, and the conversion of their text to values."""

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
    from randens import data
    from randens.attacks import Attack, Cost
    from randens.core.distributed import Workers
    from randens.core.progress import Progress
    from randens.core.runs import Kept, Run
    from randens.evaluation.run_folder import Subject
    from randens.threat import Threat
    from randens.witness.store import WitnessStore


RunFolder = Annotated[
    Path,
    typer.Argument(
        help="A run folder, made by `randens quickstart` or `randens train`, e.g. runs/quickstart-1."
    ),
]
OptionalRun = Annotated[
    Path | None,
    typer.Argument(
        help="A run folder, e.g. runs/quickstart-1; left out if --model names networks of your own."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Your own network instead of RUN: a TorchScript, ONNX or saved ensemble's file or folder, a name of the "
        "zoo, or package.module:factory, which needs --run-code."
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code", help="Import the module that --model names and call its factory: runs its code."
    ),
]
Mean = Annotated[
    str | None, typer.Option(help="With --model: the means for normalising inputs, separated by commas.")
]
Std = Annotated[str | None, typer.Option(help="With --model and --mean: the standard deviations.")]
Device = Annotated[
    str,
    typer.Option(
        help="Where members run: auto, cpu, cuda, cuda:N or mps; auto uses a CUDA GPU if there is one."
    ),
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
        help=f"An attack by name; repeatable, the worst result counts. One of: {', '.join(known.ATTACKS)}.",
        autocompletion=known.starting(known.ATTACKS),
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option for every named attack, e.g. steps=40; repeatable."),
]
Norm = Annotated[
    str | None,
    typer.Option(
        help="linf or l2, instead of the run's; give --eps too.", autocompletion=known.starting(known.NORMS)
    ),
]
Eps = Annotated[
    str | None,
    typer.Option(
        help="Radius of the perturbations instead of the run's, e.g. 0.03 or 8/255; pixels go from 0 to 1."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help=f"Data set instead of the run's. One of: {', '.join(known.DATA_SETS)}.",
        autocompletion=known.starting(known.DATA_SETS),
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only this many of the first inputs.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices of the attacks.")]

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Ignore the witnesses of earlier commands; new ones are kept.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Check all stored witnesses, not only a random sample.")
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
    """Options of every command that runs members on data."""

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
        """Open the run folder with the requested data and threat."""
        from randens.evaluation.run_folder import open_subject

        radius = number("--eps", self.eps) if eps is None else eps
        return open_subject(run, data=self.data, norm=self.norm, eps=radius)

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[Workers, Progress]]:
        """Yield the processes and the device that share the work, and the progress bars."""
        from randens.core.distributed import workers

        with workers(self.device) as processes, bars() as progress:
            yield processes, progress


@dataclass(frozen=True, kw_only=True)
class Attacking(InputOptions):
    """Options of a command that attacks a run's ensemble."""

    run: RunFolder
    attack: Attacks = None
    settings: Settings = None

    def opened(self, *default: str) -> Opened:
        """Open the run and create the attacks; `default` names the attacks if --attack is not given."""
        subject = self.subject(self.run)
        return Opened(
            subject,
            subject.load(self.split, self.limit),
            make_attacks(self.attack, default, subject.threat, self.settings, self.seed),
            subject.store(fresh=self.fresh, verify=self.verify),
        )


@dataclass(frozen=True, kw_only=True)
class Evaluating(InputOptions):
    """Options of a command that takes a run folder or the user's own networks."""

    run: OptionalRun = None
    model: Model = None
    run_code: RunCode = False
    mean: Mean = None
    std: Std = None
    attack: Attacks = None
    settings: Settings = None

    def check(self) -> None:
        """Refuse both RUN and --model, and neither of them."""
        if (self.run is None) == (self.model is None):
            raise InputError("give either a run folder RUN or networks of your own with --model")
        if self.model is not None and self.data is None:
            raise InputError(
                "--model needs --data: a data set's name, an .npz file with x and y, or a folder of images"
            )

    def given(self, eps: float | None = None) -> Given:
        """RUN, or what --model, --run-code, --mean and --std name, for `randens.evaluate`."""
        from randens.evaluation import from_factory

        if self.run is not None:
            subject = self.subject(self.run, eps)
            store = subject.store(fresh=self.fresh, verify=self.verify)
            images = subject.load(self.split, self.limit)
            return Given(subject.rec, images, subject=subject, store=store)
        assert self.model is not None
        factory = ":" in self.model and not Path(self.model).exists()
        model = from_factory(self.model, run_code=self.run_code) if factory else self.model
        return Given(model, self.data, preprocessing=self.preprocessing())

    def preprocessing(self) -> tuple[Any, ...] | None:
        """What --mean and --std mean: the pair that `randens.evaluate` takes, or None."""
        if (self.mean is None) != (self.std is None):
            raise InputError("--mean and --std go together; give both or none")
        if self.mean is None or self.std is None:
            return None
        return tuple(
            [number(name, part) for part in text.split(",")]
            for name, text in (("--mean", self.mean), ("--std", self.std))
        )

    def threat(self) -> Threat:
        """Return the threat for the user's own networks: linf with 8/255 by default."""
        from randens.threat import Threat, norm_name

        radius = number("--eps", self.eps)
        if self.norm is not None and norm_name(self.norm) != "linf" and radius is None:
            raise InputError(f"--norm is {self.norm!r}; give its radius too, with --eps")
        return Threat(self.norm or "linf", 8 / 255 if radius is None else radius)


@dataclass(frozen=True)
class Given:
    """What to evaluate: a model with its data; a run folder has its subject and store, too."""

    model: Any
    data: Any
    preprocessing: Any = None
    subject: Subject | None = None
    store: WitnessStore | None = None


@dataclass(frozen=True)
class Opened:
    """A run folder, its inputs, the attacks and the witness store."""

    subject: Subject
    images: data.Data
    attacks: list[Attack]
    store: WitnessStore


def asked(
    kind: type[InputOptions], *, without: tuple[str, ...] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the first parameter of a command is a `kind`, whose fields become the command's options.

    Fields `without` are left out; `defaults` are this command's defaults.
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
            # A command's own options come first in its help.
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
    """Return the messages about the store: passes of this command, stored results used, and problems."""
    made = f"{now.forwards:,} forward and {now.backwards:,} backward member passes in this call"
    return [f"{made}; {stored} in {store.folder}.", *store.notes]


def written(result: Kept, output: Path | None, run: Run, what: str = "its answer") -> str:
    """Write a result to `output`, or keep it in the run; returns the sentence that says where it is."""
    path, main = result.keep(run) if output is None else (result.save(output), True)
    name = path.name.partition("-")[0]
    return f"Written to {path}." + ("" if main else f" {name}.json keeps {what} on more inputs.")


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
