"""The pages in a real browser: they open without complaint, the landscape moves, hostile names do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from randens.evaluation import Evaluation
from randens.report import write_explorer, write_report
from randens.risk import RiskProfile, auxiliary_risk, optimal_sampling

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def opened(browser: Browser, path: Path, width: int = 1280) -> Iterator[Page]:
    """The page at `path`; leaving fails on any error on the console, exception or request beyond the file."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda r: None if r.url.startswith(("data:", path.as_uri())) else complaints.append(r.url)
    )
    page.on("dialog", lambda dialog: complaints.append(f"a script from data ran: {dialog.message}"))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert complaints == []


def agree(page: Page, profile: RiskProfile) -> list[float]:
    """Check the numbers beside the landscape against the library; returns α."""
    shown = page.evaluate(
        """() => { const root = document.querySelector(".landscape");
        const read = (name) => [...root.querySelectorAll(`output[data-${name}]`)].map((o) => Number(o.dataset.value));
        return { probs: JSON.parse(root.dataset.probs), numbers: read("key"), shares: read("share") }; }"""
    )
    alpha = np.array(shown["probs"])
    risk, limits = profile.risk(alpha), auxiliary_risk(profile.member_risks, alpha)
    assert shown["numbers"][:4] == pytest.approx([risk, 1 - risk, profile.gain(alpha), limits], abs=1e-9)
    assert sum(shown["shares"]) == pytest.approx(risk, abs=1e-9)
    return [float(p) for p in alpha]


def test_the_report_opens_and_its_landscape_moves(browser: Browser, trained_run: Path) -> None:
    result = Evaluation.load(trained_run / "evaluation.json")
    page_path = write_report([trained_run])
    with opened(browser, page_path) as page:
        assert page.title() == "randens report: trained"
        assert page.locator("img[src=x]").count() == 0
        assert "onerror=alert" in (page.locator(".gallery").text_content() or "")
        widths = page.evaluate("[...document.querySelectorAll('img')].map((i) => i.naturalWidth)")
        assert len(widths) > 6
        assert min(widths) > 0
        assert agree(page, result.profile) == pytest.approx(result.probs.tolist())
        # The answers are on the first screen.
        for card in page.locator(".card").all():
            box = card.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 900
        page.get_by_label("probability of member 1", exact=True).fill("0.7")
        assert agree(page, result.profile)[1] == pytest.approx(0.7)
        plot = page.locator(".landscape svg .area")
        plot.evaluate("(element) => element.scrollIntoView({ block: 'center', behavior: 'instant' })")
        box = plot.bounding_box()
        assert box is not None
        # Unlike the mouse, a locator waits until the page has stopped moving.
        plot.click(position={"x": 0.5 * box["width"], "y": 0.4 * box["height"]}, force=True)
        before = agree(page, result.profile)
        assert before[0] == pytest.approx(0.6, abs=0.02)
        page.keyboard.press("ArrowUp")
        assert agree(page, result.profile)[0] == pytest.approx(before[0] + 0.01)
        page.get_by_role("button", name="optimum").click()
        best = optimal_sampling(result.profile, clean_risks=result.clean.mean(axis=0))
        assert agree(page, result.profile) == pytest.approx(best.probs.tolist(), abs=1e-9)
        assert page.locator(".certificate").get_attribute("data-sound") == "true"
    with opened(browser, page_path, width=400) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_teaching_page(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write_explorer(tmp_path / "e.html")) as page:
        agree(page, RiskProfile.from_configurations([[(1, 0), (0, 1)], [(0, 0)]], [0.6, 0.4]))
        assert "Sampling helps" in (page.locator("#said").text_content() or "")
        page.get_by_role("button", name="any one of three").click()
        page.get_by_role("button", name="optimum").click()
        assert agree(
            page, RiskProfile.from_configurations([np.eye(3, dtype=int), [(0, 0, 0)]], [0.6, 0.4])
        ) == pytest.approx([1 / 3] * 3)
        page.locator("#configurations").fill("0.5: 10 01\n1: <img/src=x/onerror=alert(1)>")
        assert "holds the set" in (page.locator("#complaint").text_content() or "")
        assert page.locator("img[src='x']").count() == 0
