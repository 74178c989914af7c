"""Recipes that train in a second or two, for tests."""

from __future__ import annotations

from typing import Any

from randens.training import Recipe
from randens.training.recipe import recipe_from


def small(**changes: Any) -> Recipe:
    """A small fully connected network on digits; `changes` replace fields, tables field by field."""
    content: dict[str, Any] = {
        "method": "at",
        "epochs": 2,
        "batch_size": 200,
        "precision": "float32",
        "model": {"name": "mlp", "width": 16, "depth": 1},
        "data": {"name": "digits"},
        "threat": {"norm": "linf", "eps": 0.1},
        "adversary": {"name": "pgd", "steps": 2},
        "validation": {"steps": 2, "size": 60},
        "sampling": {"every": 1},
    }
    for key, value in changes.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    return recipe_from(content)
