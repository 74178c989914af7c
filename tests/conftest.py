"""For every test: few torch threads, as several workers share the cores, and examples without deadlines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator

import hypothesis
import pytest

THREADS = 1
# What needs no torch is tested without it too.
with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(THREADS)
# Timings on shared cores say nothing; examples are the same at every run, so that a failure can be repeated.
hypothesis.settings.register_profile("randens", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("randens")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test begins with the same number of threads: a command sets it for its process, which here goes on."""
    if "torch" in sys.modules and torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """At the end, a line if the tests in a browser were left out, and how to have them run."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    browserless = sum("no browser" in str(report.longrepr) for report in skipped)
    if browserless:
        terminalreporter.write_line(
            f"{browserless} tests in a browser were skipped; to run them: apt-get install chromium, "
            "or RANDENS_BROWSER=/path/to/chromium make test"
        )


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is taken for one process of several because another one left a launcher's variables behind."""
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
