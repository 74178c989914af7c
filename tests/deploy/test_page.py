"""The page of the server, in a browser: sample pictures, the sampling probabilities, the answers over draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.deploy.conftest import Exported
from tests.deploy.planted import running
from tests.report.conftest import browser

from randens.deploy import Predictor

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]


@pytest.mark.parametrize("width", [1400, 400])
def test_a_click_on_a_sample_shows_how_the_answers_are_distributed(
    browser: Browser, exported: Exported, width: int
) -> None:
    with running(exported.bundle) as server:
        page = browser.new_page(viewport={"width": width, "height": 900})
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(server.url + "/")
        page.wait_for_selector("#samples img")
        assert page.locator("#samples button").all_inner_texts() == [str(i % 10) for i in range(12)]
        probs = page.locator("#probs tr").all_inner_texts()
        assert [row.split() for row in probs] == [["member", "0", "0.700"], ["member", "1", "0.300"]]
        page.fill("#draws", "30")
        page.locator("#samples button").nth(3).click()
        page.wait_for_selector("#rows tr")
        counts = [int(row.split()[1]) for row in page.locator("#rows tr").all_inner_texts()]
        assert sum(counts) == 30
        assert len(page.locator("#draws-line span").all()) == 30
        assert page.get_attribute("#samples li:nth-child(4) button", "aria-pressed") == "true"
        # The answers are the members' own for that picture.
        known = {row.split()[0] for row in page.locator("#rows tr").all_inner_texts()}
        body = server.client.get("/v1/samples").json()[3]
        assert body["label"] == 3
        assert known <= {str(label) for label in _labels(exported, body["png"])}
        overflow = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0
        assert faults == []
        page.close()


def _labels(exported: Exported, png: str) -> list[int]:
    import base64

    from randens.deploy.decoding import Decoder

    inputs = Decoder.of(exported.bundle, 1, 1 << 20).decode("image/png", base64.b64decode(png), False)
    found: list[int] = Predictor(exported.bundle).logits(inputs)[:, 0].argmax(axis=1).tolist()
    return found
