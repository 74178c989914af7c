"""Freed memory that stays with the process: fewer pages are asked for, and they go back at the end."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from randens.core import memory

PROGRAM = """
import resource
import numpy as np
from randens.core.memory import kept_memory

def pages(blocks):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        kept = [np.ones(2**18) for _ in range(blocks)]  # 2 MiB each
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

pages(48)
outside = pages(48)
with kept_memory():
    pages(48)
    inside, held = pages(48), resident()
print(outside, inside, held, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limits are those of glibc")
def test_freed_memory_is_used_again_and_returned_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    outside, inside, held, after = (int(word) for word in done.stdout.split())
    assert inside < outside / 20, "the same blocks were asked for again"
    assert after < held - 48 * 2**20, "freed memory was not returned"


def test_freed_memory_is_returned_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, returned = [0.0], []
    monkeypatch.setattr("randens.core.memory.time.monotonic", lambda: now[0])
    monkeypatch.setattr(memory, "return_freed_memory", lambda: returned.append(now[0]))
    returning = memory.Returning(seconds=2.0)
    for now[0] in (0.0, 1.9, 2.0, 3.9, 4.1, 5.0, 6.2):
        returning()
    assert returned == [2.0, 4.1, 6.2]
