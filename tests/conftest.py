"""For every test: few torch threads, as several workers share the cores, and examples without deadlines."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

# Modules stay loaded: looking for garbage among them took a third of the time in which tests are collected.
gc.disable()

THREADS = int(os.environ.get("RANDENS_TEST_THREADS", "1"))
# What needs no torch is tested without it too.
with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(THREADS)
# Timings on shared cores say nothing; examples are the same at every run, so that a failure can be repeated.
hypothesis.settings.register_profile("randens", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("randens")

# Files go whole to one worker or the other, as their tests share what they train and attack. Those that take longest
# go first, and the short ones at the end fill up what is left: the workers end together.
LONG = (
    "tests/docs/test_blocks.py",
    "tests/report/test_browser.py",
    "tests/devices/test_devices.py",
    "tests/attacks/test_attack_laws.py",
    "tests/cli/test_commands.py",
    "tests/audit/test_audit.py",
    "tests/training/test_training_showcase.py",
    "tests/test_readers.py",
    "tests/attacks/test_consistency.py",
    "tests/report/test_report_page.py",
    "tests/attacks/test_planted_optimum.py",
    "tests/certify/test_certify.py",
    "tests/training/test_side_by_side.py",
    "tests/evaluation/test_rescore.py",
    "tests/training/test_training_distributed.py",
    "tests/interop/test_sklearn_estimator.py",
    "tests/evaluation/test_any_model.py",
    "tests/evaluation/test_evaluate.py",
    "tests/interop/test_examples.py",
    "tests/interop/test_own_examples.py",
    "tests/attacks/test_dataset.py",
    "tests/docs/test_site.py",
    "tests/attacks/test_shared_networks.py",
    "tests/test_wheel.py",
    "tests/deploy/test_fuzzing.py",
    "tests/training/test_training_kill.py",
)
_ORDER = {name: place for place, name in enumerate(LONG)}
_ROOT = Path(__file__).parents[1]
_begun: dict[str, float] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; within a file and among the others the order stays."""
    items.sort(key=lambda item: _ORDER.get(item.path.relative_to(_ROOT).as_posix(), len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """After the tests are collected, garbage is looked for again, but not among what was loaded until then."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slowest", type=int, default=0, help="list so many tests by the processor time they took"
    )
    parser.addoption(
        "--slowest-page",
        metavar="PAGE",
        help="write that list into this page, between <!-- slowest --> and <!-- end -->",
    )


def _cpu_seconds() -> float:
    """Processor time of this process and of those it has started and seen end: it does not depend on the load."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _begun[item.nodeid] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test begins with the same number of threads: a command sets it for its process, which here goes on."""
    if "torch" in sys.modules and torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    item.user_properties.append(("cpu", _cpu_seconds() - _begun.pop(item.nodeid)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """At the end: the slowest tests, if asked; a line if those in a browser were left out, and how to have them run."""
    yield
    ended = (report for reports in terminalreporter.stats.values() for report in reports)
    slowest = sorted(
        (
            (dict(report.user_properties).get("cpu", 0.0), report.nodeid)
            for report in ended
            if getattr(report, "when", "") == "teardown"
        ),
        reverse=True,
    )
    count = terminalreporter.config.getoption("--slowest")
    if count:
        terminalreporter.section(f"{count} tests that took the processor longest")
        terminalreporter.write_line(f"{sum(seconds for seconds, _ in slowest):7.1f} s  all {len(slowest)}")
    for seconds, name in slowest[:count]:
        terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
    page = terminalreporter.config.getoption("--slowest-page")
    if page:
        write_table(Path(page), sum(seconds for seconds, _ in slowest), len(slowest), slowest[:count])
    skipped = terminalreporter.stats.get("skipped", [])
    browserless = sum("no browser" in str(report.longrepr) for report in skipped)
    if browserless:
        terminalreporter.write_line(
            f"{browserless} tests in a browser were skipped; to run them: apt-get install chromium, "
            "or RANDENS_BROWSER=/path/to/chromium make test"
        )


def write_table(page: Path, total: float, tests: int, slowest: list[tuple[float, str]]) -> None:
    head, _, rest = page.read_text(encoding="utf-8").partition("<!-- slowest -->")
    _, end, tail = rest.partition("<!-- end -->")
    assert end, f"{page} has no place for the table"
    rows = "".join(f"| `{name.removeprefix('tests/')}` | {seconds:.1f} |\n" for seconds, name in slowest)
    table = f"| test | seconds |\n|---|---:|\n| all {tests:,} tests | {total:.0f} |\n{rows}"
    page.write_text(f"{head}<!-- slowest -->\n\n{table}\n{end}{tail}", encoding="utf-8")
