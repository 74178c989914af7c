"""The site builds without a warning, has every page, name and command, and asks nothing of other hosts."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.tools.pages import PAGES, ROOT

import randens
from randens.cli.main import COMMANDS


def _python(*arguments: str) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; links that lead nowhere are warnings, and warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    _python("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    return folder


def test_pages_load_nothing_from_elsewhere_and_are_in_the_menu(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert len(PAGES) - 1 <= 20
    for source in PAGES[1:]:
        name = source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).is_file()
        assert f'href="{name}"' in home or name == "index.html", name
    for page in site.rglob("*.html"):
        loads = re.findall(
            r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\" >]+)", page.read_text(encoding="utf-8")
        )
        assert not [load for load in loads if re.match(r"(https?:)?//", load)], page.name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_every_public_name_and_command_is_in_the_reference(site: Path) -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html")}
    everything = "".join(pages.values())
    for module in ("randens", *(f"randens.{layer}" for layer in pages if layer != "index")):
        for name in importlib.import_module(module).__all__:
            public = not name.startswith("_") and name not in (*pages, "callbacks")
            assert not public or re.search(rf'id="randens\.[\w.]*{name}"', everything), f"{module}.{name}"
    first = re.search(r'id="(randens\.[\w.]+)"', pages["index"])
    assert first is not None
    assert first[1].endswith(".evaluate")
    shown = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    assert all(f'id="randens-{verb}' in shown for verb in COMMANDS)
    assert randens.__version__ == "0.1.0"


def test_figures_are_made_by_the_code(tmp_path: Path) -> None:
    _python("docs/tools/figures.py", str(tmp_path))
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"figures/([\w-]+\.svg)\)", page.read_text(encoding="utf-8"))
    }
    assert {path.name for path in tmp_path.iterdir()} == shown


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_pages_outside_the_site_link_to_files_that_exist(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert not {target for target in targets if not (ROOT / target).exists()}
