"""Attack, evaluate, certify, train and deploy randomized ensembles of classifiers.

Names are loaded on first use, so that ``randens.risk`` (the theory) and the deployed predictor need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from randens import (
        attacks,
        callbacks,
        data,
        deploy,
        evaluation,
        interop,
        models,
        report,
        risk,
        training,
        zoo,
    )
    from randens.audits.audit import audit
    from randens.certificates.certification import ceiling, certify
    from randens.core.errors import InputError, RandensError, RandensWarning
    from randens.core.runs import Run
    from randens.deploy import export
    from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, load
    from randens.evaluation.advice import advise
    from randens.evaluation.conflict import conflict
    from randens.evaluation.curve import curve
    from randens.evaluation.evaluate import evaluate
    from randens.evaluation.sampling import optimize_sampling
    from randens.random_model import RandomizedModel
    from randens.threat import FiniteThreat, Threat
    from randens.witness import WitnessPool, WitnessStore

_HOMES = {
    "DeterministicEnsemble": "randens.ensemble",
    "RandomizedEnsemble": "randens.ensemble",
    "load": "randens.ensemble",
    "InputError": "randens.core.errors",
    "RandensError": "randens.core.errors",
    "RandensWarning": "randens.core.errors",
    "FiniteThreat": "randens.threat",
    "RandomizedModel": "randens.random_model",
    "Run": "randens.core.runs",
    "Threat": "randens.threat",
    "WitnessPool": "randens.witness",
    "WitnessStore": "randens.witness",
    "advise": "randens.evaluation",
    "audit": "randens.audits",
    "ceiling": "randens.certificates",
    "certify": "randens.certificates",
    "conflict": "randens.evaluation",
    "curve": "randens.evaluation",
    "evaluate": "randens.evaluation",
    "export": "randens.deploy",
    "optimize_sampling": "randens.evaluation",
}

__all__ = [
    "DeterministicEnsemble",
    "FiniteThreat",
    "InputError",
    "RandensError",
    "RandensWarning",
    "RandomizedEnsemble",
    "RandomizedModel",
    "Run",
    "Threat",
    "WitnessPool",
    "WitnessStore",
    "__version__",
    "advise",
    "attacks",
    "audit",
    "callbacks",
    "ceiling",
    "certify",
    "conflict",
    "curve",
    "data",
    "deploy",
    "evaluate",
    "evaluation",
    "export",
    "interop",
    "load",
    "models",
    "optimize_sampling",
    "report",
    "risk",
    "training",
    "zoo",
]


def __getattr__(name: str) -> Any:
    try:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in __all__:
            return importlib.import_module(f"randens.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"randens.{name} needs torch, which is not installed; pip install '.[torch]' in a clone"
        raise ModuleNotFoundError(message, name="torch") from error
    raise AttributeError(f"module 'randens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
