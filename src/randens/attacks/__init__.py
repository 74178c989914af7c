"""Everything that finds witnesses."""

from randens.attacks import arc, carlini_wagner, climbers, exact, gradient, random_search, suite
from randens.attacks.base import Attack, Found, create, names, register
from randens.attacks.foreign import Foreign, from_art, from_autoattack, from_foolbox, from_torchattacks
from randens.attacks.search import Cost, Search
from randens.attacks.survey import Survey

__all__ = [
    "Attack",
    "Cost",
    "Foreign",
    "Found",
    "Search",
    "Survey",
    "arc",
    "carlini_wagner",
    "climbers",
    "create",
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
