"""What the site needs beyond Markdown: API pages from `__all__`, and every command with its options."""

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
LAYERS = ("evaluation", "attacks", "risk", "training", "models", "data", "report", "deploy", "interop", "zoo")
_FIRST = ("evaluate", "curve", "optimize_sampling", "advise", "audit", "certify", "conflict", "export")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add an API page for the package and for each layer."""
    files.append(File.generated(config, "api/index.md", content=_page("randens", PACKAGE / "__init__.py")))
    for layer in LAYERS:
        folder = PACKAGE / layer
        source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        files.append(File.generated(config, f"api/{layer}.md", content=_page(f"randens.{layer}", source)))
    return files


def _page(module: str, source: Path) -> str:
    """Every public name of a module with its documentation; names that the package exports are on its page."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    homes = {name: _home(module, tree, name) for name in _public(tree)}
    blocks = [f"# {module}\n\n{ast.get_docstring(tree) or ''}\n"]
    if module == "randens":
        layers = " · ".join(f"[`randens.{layer}`]({layer}.md)" for layer in LAYERS)
        blocks.append(f"{layers}\n")
        homes = {name: home for name, home in homes.items() if name not in LAYERS and name[0] != "_"}
        homes = {
            name: homes[name] for name in (*_FIRST, *(n for n in homes if n not in _FIRST)) if name in homes
        }
        homes.pop("callbacks", None)
    else:
        package = _public(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")))
        elsewhere = [name for name in homes if name in package]
        if elsewhere:
            blocks.append(
                f"On the page of [`randens`](index.md): {', '.join(f'`{n}`' for n in elsewhere)}.\n"
            )
        homes = {name: home for name, home in homes.items() if name not in package}
    return "\n".join(blocks + [f"::: {home}\n" for home in homes.values()])


def _public(tree: ast.Module) -> list[str]:
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


def _home(module: str, tree: ast.Module, name: str) -> str:
    """Where a name is defined: the module that it is imported from, found by reading the imports."""
    for node in ast.walk(tree):
        imported = isinstance(node, ast.ImportFrom) and name in {a.asname or a.name for a in node.names}
        if imported and isinstance(node, ast.ImportFrom) and node.module:
            inner = PACKAGE.parent / Path(*node.module.split("."), "__init__.py")
            if inner.is_file() and node.module != module and node.module.count(".") == 1:
                return _home(node.module, ast.parse(inner.read_text(encoding="utf-8")), name)
            return f"{node.module}.{name}"
    return f"{module}.{name}"


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Put every command with its options into the page about the command line, as its own parser knows them."""
    del kwargs
    if not page.file.src_uri.endswith("command-line.md"):
        return markdown
    return markdown.replace("<!-- every command -->", "\n".join(_commands()))


def _commands() -> Iterator[str]:
    commands = getattr(typer.main.get_command(application()), "commands", {})
    for verb in COMMANDS:
        inner = getattr(commands[verb], "commands", None)
        if inner is None:
            yield from _command(f"randens {verb}", commands[verb])
        else:
            for name, sub in inner.items():
                yield from _command(f"randens {verb} {name}", sub)


def _command(title: str, command: Any) -> Iterator[str]:
    yield f"\n### {title}\n"
    yield _text(command.help or "") + "\n"
    yield "| | | default |\n|---|---|---|"
    for p in command.params:
        if p.param_type_name == "argument":
            shown = f"{p.name.upper()}…" if p.nargs == -1 else str(p.name).upper()
            yield f"| `{shown}` | {_text(p.help)} | {'required' if p.required else ''} |"
        elif p.name != "help":
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
