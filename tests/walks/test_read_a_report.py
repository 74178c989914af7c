"""Walk 5: open a report and read it: the headline, the table, the landscape, and where the numbers come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.report.made_runs import chosen_evaluation, chosen_run
from tests.report.test_browser import agree, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.cli.commands import Shell


def test_the_page_shows_the_numbers_of_the_run(shell: Shell, desk: Path, browser: Browser) -> None:
    result = chosen_evaluation(3, n=80)
    run = chosen_run(desk / "mine", result, epochs=4)
    code, out, err = shell("report", run)
    assert code == 0, err
    assert "report.html" in out
    with opened(browser, desk / "mine" / "report.html", width=1400) as page:
        assert page.locator("h1").count() == 1
        text = page.locator("body").inner_text()
        # The accuracies of the ensemble, as the file has them, with n.
        assert f"{100 * float(result.robust):.1f}" in text
        assert f"{100 * float(result.natural):.1f}" in text
        assert "80" in text
        # The reader moves α to the uniform point; every number beside the landscape follows.
        agree(page, result.profile)
        page.get_by_role("button", name="uniform").click()
        assert agree(page, result.profile) == pytest.approx([1 / 3] * 3)
