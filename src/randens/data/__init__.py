"""Data sets: loading, fetching, data that carry their split, augmentation."""

from randens.data.augment import Augment
from randens.data.cache import data_folder, entry, load, names
from randens.data.coerce import Inputs, as_inputs, called, check_range
from randens.data.fetching import Fetched, Verified, fetch, present, verify
from randens.data.image_folders import image_folder
from randens.data.images import SPLITS, ImageData, from_arrays, from_dataset

__all__ = [
    "SPLITS",
    "Augment",
    "Fetched",
    "ImageData",
    "Inputs",
    "Verified",
    "as_inputs",
    "called",
    "check_range",
    "data_folder",
    "entry",
    "fetch",
    "from_arrays",
    "from_dataset",
    "image_folder",
    "load",
    "names",
    "present",
    "verify",
]
