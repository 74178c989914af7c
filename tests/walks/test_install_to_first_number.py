"""Walk 1: install the wheel into a new environment, check it, train something small, get the first number."""

from __future__ import annotations

import json
import re

from tests.test_wheel import COMMANDS, Installed, installed, wheel

__all__ = ["installed", "wheel"]


def test_from_the_wheel_to_a_number(installed: Installed) -> None:
    # The command's name alone prints what it offers.
    first = installed()
    for way in ("I have a model", "I have a randomized defense", "I want to train one", "randens doctor"):
        assert way in first, first
    # Is the installation complete? Then the first number, from the smallest recipe that comes with the wheel.
    small = ("--set", "epochs=1", "--set", "model.width=8", "--set", "validation.size=20")
    commands = [
        ["doctor"],
        ["train", "digits-mlp-at", *small],
        ["evaluate", "runs/digits-mlp-at", "--attack", "pgd", "--limit", "20"],
    ]
    lines = installed("-c", COMMANDS, json.dumps(commands), program="python").splitlines()
    codes, (checked, _, said) = zip(*map(json.loads, lines), strict=True)
    assert codes == (0, 0, 0)
    assert "torch" in checked
    assert "digits test" in said
    assert "robust" in said
    accuracies = re.findall(r"\d+\.\d", said)
    assert accuracies, said
    assert all(0 <= float(value) <= 100 for value in accuracies[:2]), said
