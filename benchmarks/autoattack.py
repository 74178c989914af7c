"""The suite on single networks against AutoAttack: robust accuracy and passes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import randens
from benchmarks import textbook
from benchmarks.attacks import ENSEMBLE, FIRST, Side, compared, images
from benchmarks.harness import Row, Settings
from benchmarks.textbook import Counted
from randens import RandomizedEnsemble, Threat

ABOUT = (
    "Single ResNet-20s of the zoo, CIFAR-10 test images from 9000 on, linf, ε = 8/255: the suite's presets against "
    "AutoAttack's version standard (pyautoattack). Passes per image."
)
NETWORKS = ("cifar10-resnet20-at", ENSEMBLE)
IMAGES = 128


def rows(settings: Settings) -> Iterator[Row]:
    if settings.quick:
        print("autoattack takes minutes: left out of quick runs")
        return
    if importlib.util.find_spec("pyautoattack") is None:
        print("pyautoattack is not installed: left out")
        return
    x, y = images(FIRST, IMAGES)
    threat = Threat("linf", 8 / 255)
    for network in NETWORKS:
        member = randens.zoo.load(network).members[0]
        alone, counted = RandomizedEnsemble([member]), Counted(member)
        found = textbook.autoattack(counted, x, y, threat.eps)
        theirs = Side.of_theirs(alone, [found], y, [counted])
        for preset in ("standard", "thorough"):
            ours = Side.of_ours([randens.attacks.create(preset, threat).run(alone, (x, y))])
            member_of = ", first member" if network == ENSEMBLE else ""
            name = f"{preset}, {network.removeprefix('cifar10-')}{member_of}"
            ratio, note = theirs.passes / ours.passes, compared(ours, theirs)
            yield Row(name, ours.passes, theirs.passes, "passes", ratio, "× fewer passes", note)
