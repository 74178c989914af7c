"""What the site needs beyond Markdown: API pages from `__all__`, and a menu that knows which pages exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from randens.cli.main import COMMANDS, application

PACKAGE = Path(__file__).parents[2] / "src" / "randens"
_LAYERS = (
    "risk",
    "attacks",
    "evaluation",
    "audit",
    "certify",
    "training",
    "models",
    "data",
    "report",
    "deploy",
    "interop",
    "zoo",
    "errors",
)
ROOMS = tuple(n for n in _LAYERS if (PACKAGE / n).is_dir() or (PACKAGE / f"{n}.py").is_file())

# Pages that commands write from results; until they have been, a sentence stands in for them.
WRITTEN = {
    "results.md": ("Results", "python -m paper.zoo_maintenance results docs/results.md"),
    "benchmarks.md": ("Benchmarks", "make bench-docs"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add an API page for the package and for each room; then fit the menu to the pages there are."""
    files.append(File.generated(config, "api/index.md", content=_page("randens", PACKAGE / "__init__.py")))
    for room in ROOMS:
        folder = PACKAGE / room
        source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        files.append(File.generated(config, f"api/{room}.md", content=_page(f"randens.{room}", source)))
    for name, (title, command) in WRITTEN.items():
        if files.get_file_from_path(name) is None:
            text = (
                f"# {title}\n\nThis page is written from measurements by `{command}` and is not there yet.\n"
            )
            files.append(File.generated(config, name, content=text))
    pages = [file.src_uri for file in files.documentation_pages()]
    named: set[str] = set()
    config.nav = _existing(config.nav or [], set(pages), named)
    unnamed = [page for page in pages if page not in named]
    if unnamed:
        config.nav.append({"More": unnamed})
    return files


def _page(module: str, source: Path) -> str:
    """Every public name of a module with its documentation; sub-modules as links to what they hold."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    about = ast.get_docstring(tree) or ""
    homes = {name: _home(module, tree, name) for name in names}
    blocks = [f"# {module}\n\n{about}\n"]
    # Names that another room exports are documented there.
    own = module.removeprefix("randens").removeprefix(".")
    rooms = {n: h.removeprefix("randens.").removeprefix("core.").split(".")[0] for n, h in homes.items()}
    skipped = set() if own else {n for n in names if n in ROOMS or n.startswith("_")}
    there = {n: room for n, room in rooms.items() if room in ROOMS and room != own and n not in skipped}
    links = [f"- [`randens.{room}`]({room}.md)" for room in ROOMS] if not own else []
    # The anchor makes a link to the name lead here, too.
    links += [
        f'- <span id="{homes[name]}"></span>`{module}.{name}`: see [`randens.{room}`]({room}.md)'
        for name, room in there.items()
    ]
    if links:
        blocks.append("\n".join(links) + "\n")
    blocks += [f"::: {home}\n" for name, home in homes.items() if name not in there and name not in skipped]
    return "\n".join(blocks)


def _home(module: str, tree: ast.Module, name: str) -> str:
    """Where a name is defined: the module that it is imported from, found by reading the imports."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and name in {a.asname or a.name for a in node.names}
        ):
            return f"{node.module}.{name}"
    return f"{module}.{name}"


def _existing(menu: list[Any], pages: set[str], named: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in menu:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            inner = _existing(target, pages, named)
            if inner:
                kept.append({title: inner})
        elif target in pages:
            named.add(target)
            kept.append(entry)
    return kept


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Put every command with its options into the page about the command line, as its own parser knows them."""
    del kwargs
    if page.file.src_uri != "command-line.md":
        return markdown
    return markdown.replace("<!-- every command -->", "\n".join(_commands()))


def _commands() -> Iterator[str]:
    for verb in COMMANDS:
        group = typer.main.get_command(application())
        command = getattr(group, "commands", {})[verb]
        inner = getattr(command, "commands", None)
        if inner is None:
            yield from _command(f"randens {verb}", command)
        else:
            for name, sub in inner.items():
                yield from _command(f"randens {verb} {name}", sub)


def _command(title: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    yield f"\n### {title}\n"
    yield _text(command.help or "") + "\n"
    yield "| | | default |\n|---|---|---|"
    for p in arguments:
        shown = f"{p.name.upper()}…" if p.nargs == -1 else str(p.name).upper()
        yield f"| `{shown}` | {_text(p.help)} | {'required' if p.required else ''} |"
    for p in options:
        names = ", ".join(f"`{name}`" for name in (*p.opts, *p.secondary_opts))
        yield f"| {names} | {_text(p.help)} | {_default(p)} |"


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or callable(value) or not parameter.show_default:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _text(text: str) -> str:
    """One line for a table or paragraphs for a page, with what Markdown would take for markup left as it is."""
    return text.replace("|", "\\|").replace("<", "&lt;")
