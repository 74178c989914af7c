"""Data sets: one `Data` class, `as_data` for anything, named data sets."""

from randens.data.convert import as_data
from randens.data.data import SPLITS, Data, called, check_range
from randens.data.fetch import data_folder, entry, fetch, load, names, present, verify

__all__ = [
    "SPLITS",
    "Data",
    "as_data",
    "called",
    "check_range",
    "data_folder",
    "entry",
    "fetch",
    "load",
    "names",
    "present",
    "verify",
]
