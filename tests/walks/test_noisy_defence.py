"""Walk 3: a defence that adds noise; from the refusal of a single draw to a page about its randomness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.commands import Shell
from tests.report.test_browser import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DEFENCE = """
import torch

class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 640).reshape(10, 64))

    def forward(self, x, generator=None):
        return self.linear((x + 0.2 * torch.randn(x.shape, generator=generator)).flatten(1))
"""
SMALL = ("--limit", "8", "--attack", "adaptive-pgd-margin:steps=2")


def _evaluated(shell: Shell, desk: Path) -> str:
    (desk / "defence.py").write_text(DEFENCE, encoding="utf-8")
    own = ("defence:Noisy", "--data", "digits", "--eps", "0.1", *SMALL)
    assert "draws" in shell.refused("evaluate", *own, "--draws", "1")
    code, out, err = shell("evaluate", *own, "--draws", "4", "--output", "noise")
    assert code == 0, err
    return out


def test_the_screen_says_what_was_estimated(shell: Shell, desk: Path) -> None:
    out = " ".join(_evaluated(shell, desk).split())
    assert "Robust accuracy" in out
    assert "It did not know the draws that answer" in out
    assert "One draw taken as the model's answer would have printed" in out
    code, _, err = shell("report", "noise")
    assert code == 0, err
    assert (desk / "noise" / "report.html").is_file()


def test_its_page_has_a_section_about_randomness(shell: Shell, desk: Path, browser: Browser) -> None:
    _evaluated(shell, desk)
    shell("report", "noise")
    with opened(browser, desk / "noise" / "report.html") as page:
        headings = page.locator("h2").all_text_contents()
        assert any("random" in heading.lower() for heading in headings), headings
        text = page.locator("body").inner_text()
        assert "fresh" in text
