"""Everything that finds witnesses."""

from randens.attacks import arc, carlini_wagner, climbers, eot, exact, gradient, random_search, suite
from randens.attacks.arc import ARC, ARCR
from randens.attacks.base import Attack, Found, create, current_name, names, register
from randens.attacks.climbers import Lattice, Saddle
from randens.attacks.exact import Exact
from randens.attacks.foreign import Foreign, from_art, from_autoattack, from_foolbox, from_torchattacks
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

Survey = Found  # the name that results on data sets had

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
