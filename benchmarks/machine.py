"""What the numbers were measured on, and how much of it others were using. No host names, no paths."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randens.core.runs import processor

__all__ = ["Meter", "commit", "cores", "facts", "installed", "load"]

_PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "onnxruntime",
    "foolbox",
    "torchattacks",
    "adversarial-robustness-toolbox",
)


def facts() -> dict[str, Any]:
    """Processor, cores, memory, system, Python and the versions of what is measured."""
    return {
        "cpu": processor(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in _PACKAGES},
    }


def installed(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """The load average over the last minute."""
    return round(os.getloadavg()[0], 2)


def commit(root: Path) -> str:
    """The short hash of the commit, with "+" where tracked files differ from it; "" outside git."""
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return ""
    # The results are written during the run and are no part of what is measured.
    changes = [line for line in changed.splitlines() if not line.endswith("benchmarks/results.json")]
    return head + ("+" if changes else "")


@dataclass(frozen=True)
class Meter:
    """Reads how much of the machine others use, between `start` and `others`. Linux only; elsewhere None."""

    wall: float
    busy: float | None
    own: float

    @classmethod
    def start(cls) -> Meter:
        return cls(time.monotonic(), _busy(), _own())

    def spent(self) -> float:
        """Processor seconds of this process and its finished children since the start."""
        return round(_own() - self.own, 1)

    def others(self) -> float | None:
        """Share of all processors' time that went to processes that are neither this one nor its children."""
        busy = _busy()
        if busy is None or self.busy is None:
            return None
        total = (os.cpu_count() or 1) * (time.monotonic() - self.wall)
        used = busy - self.busy - (_own() - self.own)
        return round(max(0.0, used / total), 3) if total > 0 else 0.0


def _own() -> float:
    """Processor seconds of this process and of its children that have ended."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(p.ru_utime + p.ru_stime for p in parts)


def _busy() -> float | None:
    """Processor seconds spent by all processes since the machine started."""
    try:
        ticks = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle = ticks[3] + ticks[4]
    return float(sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
