"""Training robust randomized ensembles: AT, IAT, MRBoost, BARRE, BAT and joint, on one engine."""

from randens.training.cost import Estimate, estimate
from randens.training.engine import Diverged, Stopped, train
from randens.training.recipe import Recipe, find_recipe, load_recipe, shipped_recipes

__all__ = [
    "Diverged",
    "Estimate",
    "Recipe",
    "Stopped",
    "estimate",
    "find_recipe",
    "load_recipe",
    "shipped_recipes",
    "train",
]
