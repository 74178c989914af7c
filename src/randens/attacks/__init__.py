"""Everything that finds witnesses."""

import importlib
from typing import TYPE_CHECKING, Any

from randens.attacks import arc, carlini_wagner, climbers, eot, exact, gradient, random_search, suite
from randens.attacks.arc import ARC, ARCR
from randens.attacks.base import Attack, Found, create, current_name, names, register
from randens.attacks.climbers import Lattice, Saddle
from randens.attacks.exact import Exact
from randens.attacks.found import Cost
from randens.attacks.gradient import (
    APGD,
    CW,
    FGSM,
    PGD,
    AdaptiveFGSM,
    AdaptivePGDL,
    AdaptivePGDMargin,
    AdaptivePGDMCE,
    AdaptivePGDS,
    AdaptivePGDZ,
)
from randens.attacks.random_search import RandomSearch
from randens.attacks.search import Search
from randens.attacks.suite import Suite

if TYPE_CHECKING:
    from randens.interop.attack_libraries import (
        Foreign,
        from_art,
        from_autoattack,
        from_foolbox,
        from_torchattacks,
    )

Survey = Found  # earlier name of results on data sets

__all__ = [
    "APGD",
    "ARC",
    "ARCR",
    "AdaptiveFGSM",
    "AdaptivePGDL",
    "AdaptivePGDMCE",
    "AdaptivePGDMargin",
    "AdaptivePGDS",
    "AdaptivePGDZ",
    "Attack",
    "CW",
    "Cost",
    "Exact",
    "FGSM",
    "Foreign",
    "Found",
    "Lattice",
    "PGD",
    "RandomSearch",
    "Saddle",
    "Search",
    "Suite",
    "Survey",
    "arc",
    "carlini_wagner",
    "climbers",
    "create",
    "current_name",
    "eot",
    "exact",
    "from_art",
    "from_autoattack",
    "from_foolbox",
    "from_torchattacks",
    "gradient",
    "names",
    "random_search",
    "register",
    "suite",
]

# Attacks of other packages live in `interop`, a higher room. Earlier releases had them here, so the names
# still work.
_LATER = ("Foreign", "from_art", "from_autoattack", "from_foolbox", "from_torchattacks")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module("randens.interop.attack_libraries"), name)
    raise AttributeError(f"module 'randens.attacks' has no attribute {name!r}")
