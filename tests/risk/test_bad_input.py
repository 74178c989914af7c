"""Bad input to the theory: one sentence that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from randens.core.errors import InputError
from randens.risk import (
    RiskProfile,
    auxiliary_risk,
    bounds,
    candidates,
    cutting_planes,
    explain,
    necessary_size,
    optimal_sampling,
    project_simplex,
    rule_of_thumb,
    tight_profile,
    two_classifiers,
)

PAIR = RiskProfile.from_configurations([[(1, 0), (0, 1)]], [1.0])
made, witnessed = RiskProfile.from_configurations, RiskProfile.from_witnesses


def read(**change: Any) -> RiskProfile:
    return RiskProfile.from_json({**made([[(1, 0)]], [1.0]).to_json(), **change})


@pytest.mark.parametrize(
    ("call", "word"),
    [
        # Sets and weights.
        (lambda: made([]), "empty"),
        (lambda: made([[]]), "members="),
        (lambda: made([[(1, 0), (1,)]]), "ragged"),
        (lambda: made([[(1, 0)], [(1, 0, 1)]]), r"sets\[1\]"),
        *(
            (lambda row=row: made([[row]]), r"sets\[0\]")
            for row in [(1, 2), (0.5, 1), (nan, 1), ("a", "b"), 1]
        ),
        *(
            (lambda p=p: made([[(1, 0)], [(0, 1)]], p), "weights")
            for p in [[0.5, 0.4], [1.5, -0.5], [nan, 1.0], [1.0], "x"]
        ),
        # Witnesses.
        *((lambda n=n: witnessed([0], [[1, 0]], n), "n is") for n in (0, 2.5)),
        *((lambda at=at: witnessed(at, [[1, 0]], 2), "points") for at in ([5], [-1], [0.5], [0, 1])),
        *((lambda rows=rows: witnessed([0], rows, 2), "fooled") for rows in ([1, 0], [[3, 0]])),
        (lambda: witnessed([0], np.ones((1, 65), dtype=bool), 2), "64"),
        # Documents.
        *(
            (lambda change=change: read(**change), word)
            for change, word in [
                ({"format": "other"}, "format|document"),
                ({"version": 2}, "version"),
                ({"members": 3}, "set '10'"),
                ({"members": 0}, "members"),
                ({"configurations": [["12"]]}, "set '12'"),
                ({"configurations": 3}, "document"),
                ({"weights": [0.5]}, "weights"),
                ({"weights": None}, "weights"),
                ({"size": -1}, "size"),
            ]
        ),
        # Probabilities, members, attempts.
        *(
            (lambda p=p: PAIR.risk(p), "probs")
            for p in ([0.5, 0.4], [1.5, -0.5], [nan, 1.0], [1.0], [], "ab")
        ),
        (lambda: PAIR.jointly(0, 2), "from 0 to 1"),
        (lambda: PAIR.restrict([-1]), "from 0 to 1"),
        (lambda: PAIR.restrict([]), "empty"),
        (lambda: PAIR.merge(PAIR), "share"),
        (lambda: PAIR.merge(PAIR, share=1), "share"),
        (lambda: PAIR.merge(made([[(1,)]])), "members"),
        *(
            (lambda q=q: PAIR.risk([0.5, 0.5], attempts=q), "attempts is")
            for q in (0, -1, 1.5, 2.0, True, nan, "2")
        ),
        (lambda: PAIR.risk([0.5, 0.5], draw="day"), "draw 'day'; valid: client, query"),
        # Choosing α.
        (lambda: optimal_sampling([0.1]), "RiskProfile"),  # type: ignore[arg-type]
        *(
            (lambda method=method, options=options: optimal_sampling(PAIR, method, **options), word)
            for method, options, word in [
                ("exakt", {}, "valid: exact"),
                ("exact", {"iterations": 3}, "valid: max_iterations, tol"),
                ("exact", {"tol": 0}, "tol"),
                ("exact", {"tol": nan}, "tol"),
                ("exact", {"max_iterations": 0}, "max_iterations"),
                ("exact", {"clean_risks": [0.1, 2.0]}, r"clean_risks\[1\]"),
                ("exact", {"clean_risks": [0.1]}, "clean_risks"),
                ("subgradient", {"iterations": 1.5}, "iterations"),
                ("subgradient", {"step": -1}, "step"),
                ("subgradient", {"start": [0.5, 0.6]}, "start"),
                ("candidates", {"tol": 1}, "tol"),
                ("exact", {"attempts": 0}, "attempts"),
                ("subgradient", {"attempts": 2}, "attempts"),
                ("exact", {"confidence": 0.9}, "confidence"),
                (None, {"confidence": 0.4}, "confidence"),
                (None, {"confidence": 0.9}, "size is None"),
                ("confidence", {"reference": "best"}, "reference"),
            ]
        ),
        (lambda: project_simplex([0.0, nan]), "finite"),
        (lambda: cutting_planes(lambda _: PAIR, [0.5, 0.0]), "start"),
        (lambda: cutting_planes(lambda _: PAIR, [0.5, 0.5, 0.0]), "oracle"),
        (lambda: cutting_planes(lambda _: PAIR, [0.5, 0.5], tol=-1), "tol"),
        (lambda: cutting_planes(lambda _: PAIR, [0.5, 0.5], max_sweeps=0), "max_sweeps"),
        # Theorems.
        *((lambda M=M: candidates(M), "M is") for M in (0, 4, 2.0, True)),
        (lambda: two_classifiers(PAIR.restrict([0, 1, 1])), "Theorem 1"),
        *((lambda eta=eta: necessary_size(eta), "eta1") for eta in (0.0, 1.5)),
        (lambda: auxiliary_risk([0.1, 0.2], [1.0]), "probs"),
        (lambda: explain([0.3], classes=1), "classes"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        call()


@pytest.mark.parametrize("risks", [[], [0.5, 1.2], [-0.1], [0.2, nan], [inf], [[0.1, 0.2]], "abc", None])
def test_bad_risks_are_named(risks: Any) -> None:
    for call in (bounds, rule_of_thumb, tight_profile, explain, lambda r: auxiliary_risk(r, [1.0])):
        with pytest.raises(InputError, match="member_risks"):
            call(risks)
