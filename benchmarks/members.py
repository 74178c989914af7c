"""The trained members that the attack benchmark attacks: the zoo's, or three ResNet-20s trained on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import platformdirs

import randens
from randens import RandomizedEnsemble, training, zoo

__all__ = ["NAME", "locate", "prepare"]

NAME = "cifar10-resnet20-barre-m3"
"""The ensemble of the zoo that is preferred."""


def prepare(say: Callable[[str], None] | None = None) -> None:
    """Train the members by members.toml, unless the zoo has some or they are there already: minutes, once."""
    if _in_the_zoo() or (_trained() / "ensemble").exists():
        return
    if say is not None:
        say("training the three ResNet-20s of benchmarks/members.toml, once; an interrupted run continues")
    recipe = training.load_recipe(Path(__file__).with_name("members.toml"))
    training.train(recipe, _trained())


def locate(given: Path | None) -> tuple[RandomizedEnsemble, str]:
    """The ensemble to attack, and in a few words which it is."""
    if given is not None:
        return randens.load(given), "an ensemble given by --ensemble"
    if _in_the_zoo():
        # All members take part; the probabilities it ships with may leave some out.
        return zoo.load(NAME).with_probs(None), f"{NAME} of the zoo, uniform"
    prepare()
    return randens.load(_trained() / "ensemble"), "three ResNet-20s by members.toml"


def _in_the_zoo() -> bool:
    return NAME in zoo.names()


def _trained() -> Path:
    return Path(platformdirs.user_cache_dir("randens")) / "benchmark-members"
