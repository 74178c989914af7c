"""Everything that finds witnesses."""

from randens.attacks import arc, climbers, gradient
from randens.attacks.base import Attack, Found, create, names, register
from randens.attacks.search import Cost, Search

__all__ = ["Attack", "Cost", "Found", "Search", "arc", "climbers", "create", "gradient", "names", "register"]
