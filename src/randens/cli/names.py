"""Names that the shell completes. They are listed here because importing the library takes seconds, which is
too long for a key press. A test compares them with the library."""

from __future__ import annotations

from collections.abc import Callable

ATTACKS = (
    "saddle",
    "suite",
    "lattice",
    "arc",
    "arc-r",
    "fgsm",
    "pgd",
    "afgsm",
    "adaptive-pgd-l",
    "adaptive-pgd-s",
    "adaptive-pgd-z",
    "adaptive-pgd-margin",
    "adaptive-pgd-mce",
    "acw",
    "margin",
    "cw",
    "apgd",
    "eot",
    "random",
    "sparse",
    "exact",
)
DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
FIGURES = ("landscape", "flops", "cofooling", "sets", "radius", "training", "attacks")
NORMS = ("linf", "l2", "l1", "l0")
SPLITS = ("train", "validation", "test")


def starting(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a completion function for Typer: the names that start with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete
