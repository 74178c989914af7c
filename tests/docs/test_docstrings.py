"""Every public name explains itself: what it does, its parameters, what it returns, and an example that runs."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import randens

ROOMS = (
    "attacks",
    "audit",
    "callbacks",
    "certify",
    "data",
    "deploy",
    "errors",
    "evaluation",
    "interop",
    "models",
    "report",
    "risk",
    "training",
    "zoo",
)
# Examples that need another package, a server, or minutes; their pages show them instead.
WITHOUT_EXAMPLE = {
    "from_art": "docs/interop.md",
    "from_autoattack": "docs/interop.md",
    "from_foolbox": "docs/interop.md",
    "from_torchattacks": "docs/interop.md",
    "fetch": "docs/data.md",
}


def public() -> Iterator[tuple[str, Any]]:
    """Functions and classes by their public names, each once."""
    seen: set[int] = set()
    for module, names in [
        (randens, randens.__all__),
        *((importlib.import_module(f"randens.{room}"), None) for room in ROOMS),
    ]:
        for name in names or module.__all__:
            found = getattr(module, name)
            if (inspect.isclass(found) or inspect.isfunction(found)) and id(found) not in seen:
                seen.add(id(found))
                yield f"{module.__name__}.{name}", found


PUBLIC = dict(public())


def parameters(found: Any) -> list[str]:
    """Names that a caller may give; those of a value that only randens makes need no explaining twice."""
    if inspect.isclass(found) and (issubclass(found, Exception) or getattr(found, "_is_protocol", False)):
        return []
    try:
        given = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in given if p.name not in ("self", "args", "kwargs") and not p.name.startswith("_")]


def inherited(found: Any) -> set[str]:
    """Options of a base class, which its own docstring explains."""
    if not inspect.isclass(found):
        return set()
    bases = [base for base in found.__mro__[1:] if dataclasses.is_dataclass(base)]
    return {field.name for base in bases for field in dataclasses.fields(base)}


def is_result(found: Any) -> bool:
    """A value that functions return: its fields are named, and those functions have the examples."""
    return dataclasses.is_dataclass(found) and not issubclass(found, randens.attacks.Attack)  # type: ignore[arg-type]


def complaints(name: str, found: Any) -> list[str]:
    text = inspect.cleandoc(found.__doc__ or "")
    if not text:
        return ["no docstring"]
    said = []
    if is_result(found):
        unnamed = [
            p for p in parameters(found) if p not in inherited(found) and not re.search(rf"\b{p}\b", text)
        ]
        return [f"fields not named: {', '.join(unnamed)}"] if unnamed else []
    first = text.splitlines()[0]
    if not first.rstrip().endswith((".", ":", "?")) and not text.split("\n\n")[0].rstrip().endswith(
        (".", ":")
    ):
        said.append("the summary is no sentence")
    wanted = [p for p in parameters(found) if p not in inherited(found)]
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    listed = (
        set(re.findall(r"\w+", " ".join(re.findall(r"^\S.*", section[1], re.MULTILINE))))
        if section
        else set()
    )
    if missing := [p for p in wanted if p not in listed]:
        said.append(f"parameters not explained: {', '.join(missing)}")
    if inspect.isfunction(found):
        returned = inspect.signature(found).return_annotation
        if returned not in ("None", "NoReturn", None, inspect.Signature.empty) and not re.search(
            r"^(Returns|Yields)\n-+\n", text, re.MULTILINE
        ):
            said.append("what it returns is not explained")
    short = name.rpartition(".")[2]
    exempt = short in WITHOUT_EXAMPLE or (inspect.isclass(found) and issubclass(found, Exception))
    if ">>>" not in text and not exempt:
        said.append("no example")
    return said


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_explained(name: str) -> None:
    assert complaints(name, PUBLIC[name]) == []


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_no_public_name_hides_a_module(room: str) -> None:
    module = importlib.import_module(f"randens.{room}".rstrip("."))
    files = {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
    hidden = [n for n in module.__all__ if n in files and not inspect.ismodule(getattr(module, n))]
    assert hidden == []


@pytest.mark.parametrize("name", [n for n, found in PUBLIC.items() if ">>>" in (found.__doc__ or "")])
def test_every_example_runs(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = PUBLIC[name]
    module = inspect.getmodule(found)
    assert module is not None
    example = doctest.DocTestParser().get_doctest(found.__doc__ or "", dict(vars(module)), name, None, None)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=flags, verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", WITHOUT_EXAMPLE)
def test_pages_show_what_docstrings_cannot(name: str) -> None:
    from tests.docs.blocks import ROOT

    assert name in (ROOT / WITHOUT_EXAMPLE[name]).read_text(encoding="utf-8")
