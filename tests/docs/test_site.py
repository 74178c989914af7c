"""The site builds without a warning, every link in it leads somewhere, and it asks nothing of other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from tests.docs.blocks import PAGES, ROOT

import randens
from randens.cli.main import COMMANDS

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
# Attributes that make a browser load something by itself, as opposed to links that a person follows.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = _python("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag == "a" and (target := given.get("href")):
            self.links.append(target)
        if (loaded := given.get(LOADED.get(tag, ""))) is not None:
            self.loads.append(loaded)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    checked = 0
    for path, page in pages.items():
        for link in page.links + page.loads:
            target, anchor = urldefrag(link)
            if urlparse(target).scheme:
                continue
            checked += 1
            aim = path if not target else Path(os.path.normpath(path.parent / unquote(target)))
            aim = aim / "index.html" if aim.is_dir() else aim
            assert aim.is_file(), f"{path.name}: {link}"
            if anchor and aim in pages and not anchor.startswith("__"):
                assert unquote(anchor) in pages[aim].anchors, f"{path.name}: {link}"
    assert checked > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        foreign = [
            load for load in page.loads if urlparse(load).scheme not in ("", "data") or load.startswith("//")
        ]
        assert not foreign, f"{path.name}: {foreign}"
    for sheet in site.rglob("*.css"):
        called = re.findall(
            r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^)\"']+)", sheet.read_text(encoding="utf-8")
        )
        assert not called, f"{sheet.name}: {called}"


def test_every_page_is_in_the_site_and_in_the_menu(site: Path, pages: dict[Path, Page]) -> None:
    menu = {urldefrag(link)[0] for link in pages[site / "index.html"].links}
    for source in PAGES[1:]:
        name = source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).is_file()
        assert name in menu or name == "index.html", name


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    documented = {
        anchor for path, page in pages.items() if path.parent.name == "api" for anchor in page.anchors
    }
    layers = [path.stem for path in (site / "api").glob("*.html") if path.stem != "index"]
    assert len(layers) > 5
    for room in layers:
        shown = pages[site / "api" / f"{room}.html"].anchors
        module = getattr(randens, room, None) or __import__(f"randens.{room}", fromlist=["*"])
        for name in module.__all__:
            # By the module that defines it, which may belong to another room.
            assert any(a.startswith("randens.") and a.endswith(f".{name}") for a in shown), f"{room}.{name}"
    for name in (
        "ensemble.RandomizedEnsemble",
        "ensemble.DeterministicEnsemble",
        "threat.Threat",
        "witness.WitnessPool",
    ):
        assert f"randens.{name}" in documented


def test_the_page_about_the_command_line_has_every_command(site: Path) -> None:
    shown = (site / "command-line.html").read_text(encoding="utf-8")
    for verb in COMMANDS:
        assert f'id="randens-{verb}' in shown


def test_the_figures_are_made_by_the_code(tmp_path: Path) -> None:
    drawn = _python("docs/tools/figures.py", str(tmp_path))
    assert drawn.returncode == 0, drawn.stderr
    shown = {path.name for path in (ROOT / "docs" / "figures").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == shown


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_pages_outside_the_site_link_to_files_that_exist(page: str) -> None:
    # Pages that commands write from results may be missing until they have been written.
    later = {"docs/results.md", "docs/benchmarks.md"}
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    local = {target for target in targets if not urlparse(target).scheme}
    assert not {target for target in local - later if not (ROOT / target).exists()}
