"""Trained ensembles that come with randens, each an ordinary run folder with a card."""

from randens.zoo.cards import card
from randens.zoo.entries import Entry, add, entry, load, names, root, take
from randens.zoo.results import results

__all__ = ["Entry", "add", "card", "entry", "load", "names", "results", "root", "take"]
