"""Trained ensembles that come with randens, each an ordinary run folder with a card."""

from randens.zoo.cards import card
from randens.zoo.entries import Entry, add, entry, keep_trial, load, names, root, take, trials
from randens.zoo.results import results

__all__ = [
    "Entry",
    "add",
    "card",
    "entry",
    "keep_trial",
    "load",
    "names",
    "results",
    "root",
    "take",
    "trials",
]
