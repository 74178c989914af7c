"""Whether bfloat16 works on this machine, and whether it is faster than float32.

Some machines advertise instructions that a process cannot use, and the first bfloat16 convolution then ends
the process by a signal. So a child process tries it, once per CPU, torch version and number of threads. The
result is kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
import torch
from torch import nn

from randens.core.errors import FileError
from randens.core.files import read_json, sha256, write_json
from randens.core.runs import processor

__all__ = ["Probe", "bfloat16_pays", "probe"]

_FORMAT = 1
_SECONDS = 90.0
# Below this the difference is noise, and float32 is the safer choice.
_WORTH = 1.05


@dataclass(frozen=True)
class Probe:
    """Seconds of one forward and backward pass of a small convolutional network, channels_last.

    `bfloat16` is None where it does not work; `reason` then says what happened.
    """

    float32: float | None
    bfloat16: float | None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """The speed of bfloat16 relative to float32; None if one of them does not work."""
        return self.float32 / self.bfloat16 if self.float32 and self.bfloat16 else None

    @property
    def pays(self) -> bool:
        """Whether bfloat16 works and is faster."""
        return self.ratio is not None and self.ratio >= _WORTH


def bfloat16_pays(device: str = "cpu") -> bool:
    """Whether gradients should be taken in bfloat16 on `device` ("cpu" or "cuda")."""
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return device == "cpu" and probe().pays


def probe(*, folder: str | os.PathLike[str] | None = None, seconds: float = _SECONDS) -> Probe:
    """Measure in a child process that may take `seconds`, or read an earlier measurement.

    `folder` keeps the result; None is the user's cache folder.
    """
    cache = Path(folder) if folder is not None else platformdirs.user_cache_path("randens") / "precision"
    return _recall(cache, torch.get_num_threads(), seconds)


@functools.lru_cache(maxsize=8)
def _recall(cache: Path, threads: int, seconds: float) -> Probe:
    key = {"format": _FORMAT, "cpu": processor(), "torch": torch.__version__, "threads": threads}
    path = cache / f"{sha256(json.dumps(key, sort_keys=True).encode())[:16]}.json"
    try:
        stored = read_json(path)
        if stored["key"] == key:
            return Probe(**stored["probe"])
    except (FileError, KeyError, TypeError):
        pass  # not measured yet, or damaged: measure again
    found = _measure(threads, seconds)
    # A read-only cache only costs time at the next start.
    with contextlib.suppress(FileError):
        write_json(path, {"key": key, "probe": asdict(found)})
    return found


def _measure(threads: int, seconds: float) -> Probe:
    """Run this file as a child process; its output says how far it came."""
    command = [sys.executable, "-m", "randens.models.precision", str(threads)]
    # The child process must import the same package as this process.
    home = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
        output, code = child.stdout, child.returncode
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
        code = None
    except OSError as error:
        return Probe(None, None, f"no child process could be started: {error}")
    times: dict[str, float] = {}
    for line in output.splitlines():
        name, _, value = line.partition(" ")
        if name in ("float32", "bfloat16"):
            times[name] = float(value)
    reason = ""
    if "bfloat16" not in times:
        if code is None:
            reason = f"bfloat16 gave no result within {seconds:g} s"
        else:
            reason = f"bfloat16 ended the process by signal {-code}" if code < 0 else "bfloat16 failed"
    return Probe(times.get("float32"), times.get("bfloat16"), reason)


def _child(threads: int) -> None:
    """Time both precisions, float32 first: it must be known even if bfloat16 ends the process."""
    torch.set_num_threads(threads)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16 * 16, 10),
    )  # fmt: skip
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.zeros(32, 3, 32, 32).to(memory_format=torch.channels_last).requires_grad_()
    for name in ("float32", "bfloat16"):
        times = []
        for _ in range(6):
            start = time.perf_counter()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=name == "bfloat16"):
                z = model(x)
            z.float().square().mean().backward()
            times.append(time.perf_counter() - start)
        sys.stdout.write(f"{name} {min(times[1:])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _child(int(sys.argv[1]))
