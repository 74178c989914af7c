"""Training robust randomized ensembles: AT, IAT, MRBoost, BARRE, BAT, joint and bounded, on one engine."""

from randens.training.engine import Diverged, Stopped
from randens.training.recipe import Recipe
from randens.training.train import Plan, find_recipe, load_recipe, plan, shipped_recipes, train

__all__ = [
    "Diverged",
    "Plan",
    "Recipe",
    "Stopped",
    "find_recipe",
    "load_recipe",
    "plan",
    "shipped_recipes",
    "train",
]
