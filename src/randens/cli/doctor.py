"""`randens doctor`: check the installation."""

from __future__ import annotations

import typer

from randens.cli.output import Json, console, print_json

__all__ = ["doctor"]


def doctor(as_json: Json = False) -> None:
    """Check versions, device, precision, disk, data, and the main functions; exit code 1 if something is wrong.

    It takes seconds and changes nothing. Include its output in a bug report.

    Example: randens doctor
    """
    from randens.doctor import diagnose

    found = diagnose()
    if as_json:
        print_json(found.to_json())
    else:
        out = console()
        for check in found.checks:
            out.print(f"{'ok  ' if check.ok else 'BAD '} {check.name:<10} {check.detail}")
        out.print("All is well." if found.ok else "Something is wrong: see the lines that begin with BAD.")
    if not found.ok:
        raise typer.Exit(1)
