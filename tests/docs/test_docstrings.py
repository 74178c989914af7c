"""The examples in the docstrings of public names run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import randens


def _public() -> Iterator[tuple[str, Any]]:
    """Functions and classes with an example, by their public names, each once."""
    layers = [name for _, name, _ in pkgutil.iter_modules(randens.__path__) if not name.startswith("_")]
    seen: set[int] = set()
    for module in (
        randens,
        *(importlib.import_module(f"randens.{name}") for name in layers if name != "cli"),
    ):
        for name in getattr(module, "__all__", []):
            found = getattr(module, name)
            if callable(found) and ">>>" in (found.__doc__ or "") and id(found) not in seen:
                seen.add(id(found))
                yield f"{module.__name__}.{name}", found


PUBLIC = dict(_public())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_example_runs(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = inspect.getmodule(PUBLIC[name])
    assert module is not None
    example = doctest.DocTestParser().get_doctest(
        PUBLIC[name].__doc__ or "", dict(vars(module)), name, None, None
    )
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=flags, verbose=False).run(example, out=printed.append)
    assert result.failed == 0, "".join(printed)
