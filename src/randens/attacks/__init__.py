"""Everything that finds witnesses."""

from randens.attacks import arc, climbers, exact, gradient, random_search, suite
from randens.attacks.base import Attack, Found, create, names, register
from randens.attacks.search import Cost, Search
from randens.attacks.survey import Survey

__all__ = [
    "Attack",
    "Cost",
    "Found",
    "Search",
    "Survey",
    "arc",
    "climbers",
    "create",
    "exact",
    "gradient",
    "names",
    "random_search",
    "register",
    "suite",
]
