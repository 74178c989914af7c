"""Networks of the authors' program, MRBoost's or DVERGE's, attacked by this library: python -m paper.rescore PLACE.

BARRE: a folder of folders with `model_best.pth`; the last one holds α. MRBoost: a folder of `iter*/epoch99.pth`.
DVERGE: one file of all members, each with its normalization. The weights are read without running any code in them.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, evaluate
from randens.core.errors import FileError, RandensError
from randens.core.progress import bars
from randens.models.networks import MobileNetV1, ResNet
from randens.models.registry import Classifier

NORMALIZATION = {
    10: ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    100: ((0.5070752, 0.4865489, 0.4409178), (0.2673343, 0.2564385, 0.2761505)),
}
"""Of the authors' program for CIFAR-10 and CIFAR-100, if it was trained with `--normalize`."""
_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "resnet20": partial(ResNet, width=16, blocks=(3, 3, 3), projections=False),
    "resnet20-projections": partial(ResNet, width=16, blocks=(3, 3, 3), projections=True),
    "resnet18": partial(ResNet, width=64, blocks=(2, 2, 2, 2), projections=True),
    "mobilenetv1": partial(MobileNetV1, width=32),
}
_SHAPE = (3, 32, 32)
_ARRAYS: list[Any] = [Counter, np.ndarray, np.dtype, type(np.dtype(np.float64))]
for _value in (np.zeros(1), np.float64(0)):
    _made: Any = _value.__reduce__()[0]
    _ARRAYS += [
        (_made, f"{package}.multiarray.{_made.__name__}") for package in ("numpy.core", "numpy._core")
    ]
"""What else than tensors such a file may hold."""


def members(place: Path, normalized: bool = False) -> tuple[list[Classifier], list[float] | None]:
    """The networks at `place` and their α, if that was saved."""
    if place.is_file():
        return [_member(weights, normalized) for weights in _read(place).values()], None
    files = sorted(place.glob("*/model_best.pth")) or sorted(
        place.glob("iter*/epoch99.pth"), key=lambda file: int("0" + re.sub(r"\D", "", file.parent.name))
    )
    if not files:
        raise FileError(f"{place} holds neither */model_best.pth nor iter*/epoch99.pth, and is no file")
    read = [_read(file) for file in files]
    saved = read[-1].get("alpha")
    alpha = None if saved is None else np.maximum(np.round(np.asarray(saved, dtype=np.float64), 3), 0)
    if alpha is not None and (len(alpha) != len(files) or not alpha.any()):
        raise FileError(f"{files[-1]} holds an alpha of {len(alpha)} values for {len(files)} networks")
    probs = None if alpha is None else (alpha / alpha.sum()).tolist()
    return [_member(each.get("net"), normalized) for each in read], probs


def _read(file: Path) -> Mapping[str, Any]:
    try:
        with torch.serialization.safe_globals(_ARRAYS):
            found = torch.load(file, map_location="cpu", weights_only=True)
    # torch raises whatever the damage leads to.
    except Exception as error:
        raise FileError(f"{file} is no file of weights alone ({error!s:.200})") from error
    if not isinstance(found, Mapping) or not found:
        raise FileError(f"{file} holds no weights by name")
    return found


def _member(weights: Any, normalized: bool) -> Classifier:
    """The network whose weights have these shapes, in this order."""
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise FileError("a network's weights are not tensors by name")
    own = {
        k.rpartition("normalizer.")[2]: v.flatten().tolist() for k, v in weights.items() if "normalizer." in k
    }
    tensors = [value for key, value in weights.items() if "normalizer." not in key]
    classes = len(tensors[-1]) if tensors else 0
    mean, std = NORMALIZATION.get(classes, (None, None)) if normalized else (own.get("mean"), own.get("std"))
    for name, make in _NETWORKS.items():
        with torch.device("meta"):
            state = make(_SHAPE, max(classes, 1)).state_dict()
        if [value.shape for value in state.values()] == [value.shape for value in tensors]:
            body = make(_SHAPE, classes)
            body.load_state_dict(dict(zip(state, tensors, strict=True)))
            architecture = {"name": name, "classes": classes, "input_shape": list(_SHAPE)}
            return Classifier(body, {**architecture, "mean": mean, "std": std}).eval()
    raise FileError(f"no network of {', '.join(_NETWORKS)} has these {len(tensors)} tensors")


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack at 8/255 in the maximum norm, at their own α and uniform; exit code 2 for bad input."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--attack", default="standard", help="e.g. arc-r, the paper's; standard by default")
    parser.add_argument("--normalized", action="store_true", help="they were trained with --normalize")
    parser.add_argument("--limit", type=int, help="use only this many of the first test images")
    parser.add_argument("--out", type=Path, help="a witness store, so that the same command continues")
    asked = parser.parse_args(arguments)
    try:
        with bars() as progress:
            networks, probs = members(asked.place, asked.normalized)
            rec = RandomizedEnsemble(networks, probs, threat=Threat("linf", 8 / 255))
            options: dict[str, Any] = {"limit": asked.limit, "folder": asked.out, "progress": progress}
            also = {"uniform": None} if len(networks) > 1 else {}
            found = evaluate(rec, f"cifar{networks[0].classes}", asked.attack, also=also, **options)
    except RandensError as error:
        print(f"randens: {error}", file=sys.stderr)
        return 2
    print("\n".join([found.table().markdown(), *found.sentences()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
