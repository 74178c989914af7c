"""Trained ensembles that come with randens, each an ordinary run folder with a card."""

from randens.zoo.cards import card
from randens.zoo.entries import Entry, add, entry, keep_trial, load, names, root, take, trials

__all__ = [
    "Entry",
    "add",
    "card",
    "entry",
    "keep_trial",
    "load",
    "names",
    "root",
    "take",
    "trials",
]
