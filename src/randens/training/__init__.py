"""Training robust randomized ensembles: AT, IAT, MRBoost, BARRE, BAT and joint, on one engine."""

from randens.training.cost import Estimate, estimate
from randens.training.engine import Diverged, Stopped, train
from randens.training.recipe import Recipe, load_recipe

__all__ = ["Diverged", "Estimate", "Recipe", "Stopped", "estimate", "load_recipe", "train"]
