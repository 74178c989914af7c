"""Training robust randomized ensembles: AT, IAT, MRBoost, BARRE, BAT and joint, on one engine."""

from randens.training.cost import CostEstimate, estimate
from randens.training.engine import Stopped
from randens.training.journal import Diverged
from randens.training.launch import train
from randens.training.recipe import Recipe, find_recipe, load_recipe, shipped_recipes

__all__ = [
    "CostEstimate",
    "Diverged",
    "Recipe",
    "Stopped",
    "estimate",
    "find_recipe",
    "load_recipe",
    "shipped_recipes",
    "train",
]
