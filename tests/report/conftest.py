"""Fixtures of the report's tests: a trained run with every document, and a browser where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.made_runs import trained_ensemble

import randens
from randens.core.runs import Run
from randens.evaluation.tables import Result

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = '<script>document.title="owned"</script>'


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every document is real; its class names are hostile."""
    names = [f'{digit} </script>{HOSTILE}<img src=x onerror=alert("{digit}")>' for digit in range(10)]
    recipe = {"method": "iat", "data": {"name": "digits"}, "note": HOSTILE}
    run = Run.create(tmp_path_factory.mktemp("runs") / "trained", recipe=recipe, seed=0)
    trained_ensemble(names).save(run.ensemble)
    few: Any = {"limit": 40, "folder": run.path}
    results: tuple[Result, ...] = (
        randens.optimize_sampling(run.path, "digits", "saddle", split="validation", **few),
        randens.evaluate(run.path, "digits", "saddle", also={"uniform": None}, **few),
        randens.advise(run.path, "digits", "fgsm", **few),
        randens.curve(run.path, "digits", "fgsm", eps=[0, 0.1, 0.2], **few),
        randens.audit(run.path, "digits", "fgsm", **few),
        randens.certify(run.path, "digits", **few),
    )
    for result in results:
        result.save(run.path / f"{result.kind}.json")
    for epoch in range(6):
        run.log(event="epoch", member=1 + epoch // 2, loss=[2.0], natural=0.5, robust=0.2, accuracy=None)
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
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()
