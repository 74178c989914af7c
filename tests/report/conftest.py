"""Fixtures of the report's tests: a trained run, and a browser where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.report.made_runs import THREAT, trained_ensemble

import randens
from randens.core.runs import Run
from randens.report import measure

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = '<script>document.title="owned"</script>'


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an ensemble, an evaluation and measurements, all real; its class names are hostile."""
    names = [f'{digit} </script>{HOSTILE}<img src=x onerror=alert("{digit}")>' for digit in range(10)]
    rec, data = trained_ensemble(classes=names)
    run = Run.create(
        tmp_path_factory.mktemp("runs") / "trained",
        recipe={"method": "iat", "data": {"name": "digits"}, "note": HOSTILE},
        seed=0,
    )
    rec.save(run.ensemble)
    attack = randens.attacks.create("saddle", THREAT)
    result = randens.evaluate(rec, data, attack, also={"uniform": None})
    result.save(run.path / "evaluation.json")
    found = measure(rec, data, THREAT, compared=("afgsm", "saddle"), factors=(0.5, 1.0, 2.0), folder=run.path)
    found.save(run)
    return run.path


# Not for the whole session: while it runs, Playwright keeps an event loop and signal handlers in this process, which
# tests of other files would meet.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by Playwright; set RANDENS_BROWSER to another executable."""
    required = os.environ.get("RANDENS_REQUIRE_BROWSER") == "1"
    path = os.environ.get("RANDENS_BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if required:
            raise
        pytest.skip("no browser: Playwright, which drives it, is not installed (pip install playwright)")
    if path is None:
        if required:
            pytest.fail("RANDENS_REQUIRE_BROWSER is 1 and there is no Chromium")
        pytest.skip("no browser")
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_playwright() as driver:
        # Playwright gives every launch a fresh profile of its own.
        opened = driver.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()
