"""For every test: few torch threads, as several workers share the cores, and examples without deadlines."""

from __future__ import annotations

import contextlib
import os

import hypothesis
import pytest

# What needs no torch is tested without it too.
with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(int(os.environ.get("RANDENS_TEST_THREADS", "1")))
# Timings on shared cores say nothing; examples are the same at every run, so that a failure can be repeated.
hypothesis.settings.register_profile("randens", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("randens")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line if the tests in a browser were left out, and how to have them run."""
    skipped = terminalreporter.stats.get("skipped", [])
    browserless = sum("no browser" in str(report.longrepr) for report in skipped)
    if browserless:
        terminalreporter.write_line(
            f"{browserless} tests in a browser were skipped; to run them: apt-get install chromium, "
            "or RANDENS_BROWSER=/path/to/chromium make test"
        )
