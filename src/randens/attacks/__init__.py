"""Everything that finds witnesses."""

from randens.attacks import arc, climbers, exact, gradient, random_search, suite
from randens.attacks.base import Attack, Found, create, names, register
from randens.attacks.search import Cost, Search

__all__ = ["Attack", "Cost", "Found", "Search", "arc", "climbers", "create",
    "exact",
    "gradient",
    "names",
    "random_search",
    "register",
    "suite",
]
