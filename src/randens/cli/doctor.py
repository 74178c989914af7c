"""`randens doctor`: check the installation."""

from __future__ import annotations

import typer

from randens.cli.choices import Json, show


def doctor(as_json: Json = False) -> None:
    """Check versions, device and a case with a known answer; exit code 1 if something is wrong.

    It takes seconds and changes nothing. Include its output in a bug report.

    Example: randens doctor
    """
    from randens.doctor import diagnose

    found = diagnose()
    lines = [f"{'ok  ' if check.ok else 'BAD '} {check.name:<10} {check.detail}" for check in found.checks]
    show(found, as_json, [*lines, "All checks passed." if found.ok else "Something is wrong: see BAD above."])
    if not found.ok:
        raise typer.Exit(1)
