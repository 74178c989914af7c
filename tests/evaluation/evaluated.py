"""`randens.evaluate` with the kind of result that a test expects."""

from __future__ import annotations

from typing import Any

import randens
from randens.evaluation import Evaluation, RandomEvaluation


def evaluate(*given: Any, **options: Any) -> Evaluation:
    """Of deterministic members."""
    found = randens.evaluate(*given, **options)
    assert isinstance(found, Evaluation)
    return found


def evaluate_random(*given: Any, **options: Any) -> RandomEvaluation:
    """Of a random model."""
    found = randens.evaluate(*given, **options)
    assert isinstance(found, RandomEvaluation)
    return found
