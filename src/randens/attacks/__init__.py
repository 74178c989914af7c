"""Everything that finds witnesses."""

from randens.attacks.arc import ARC
from randens.attacks.base import Attack, create, names, register
from randens.attacks.carlini_wagner import ACW
from randens.attacks.eot import EOT
from randens.attacks.exact import Exact, Finite
from randens.attacks.lattice import Lattice
from randens.attacks.pgd import APGD, FGSM, PGD, AdaptiveFGSM, AdaptivePGD
from randens.attacks.proposals import Foreign, Mixture, from_function
from randens.attacks.result import AttackResult, Cost
from randens.attacks.saddle import Saddle
from randens.attacks.search import Search
from randens.attacks.square import Square
from randens.attacks.suite import Suite

__all__ = [
    "ACW",
    "APGD",
    "ARC",
    "AdaptiveFGSM",
    "AdaptivePGD",
    "Attack",
    "AttackResult",
    "Cost",
    "EOT",
    "Exact",
    "FGSM",
    "Finite",
    "Foreign",
    "Lattice",
    "Mixture",
    "PGD",
    "Saddle",
    "Search",
    "Square",
    "Suite",
    "create",
    "from_function",
    "names",
    "register",
]
