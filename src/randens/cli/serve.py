"""`randens serve`: serve a bundle over HTTP."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from randens.core.errors import InputError, printable, whole
from randens.core.files import read_file

_LONGEST_TOKENS = 1 << 16


def serve(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle made by `randens export`.")],
    host: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File of bearer tokens, one per line; every client must send one.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Requests that are computed at once.")] = 2,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body.")] = 8 << 20,
    max_batch: Annotated[int, typer.Option(help="Inputs times draws of a request.")] = 256,
    max_draws: Annotated[int, typer.Option(help="Draws that a client may ask for with ?draws=.")] = 1,
    pin: Annotated[bool, typer.Option("--pin", help="Draw one member per client, not per input.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Tell clients which member answered. Never in production.")
    ] = False,
) -> None:
    """Serve BUNDLE over HTTP until interrupted: POST /v1/predict.

    It needs the extra `serve`. After Ctrl-C or SIGTERM it answers the requests
    that it has begun and ends with exit code 130 or 143.

    Example: randens serve runs/quickstart-1/bundle --port 8000
    """
    from randens.deploy.predictor import Predictor
    from randens.deploy.server import Settings, create_app
    from randens.deploy.server import serve as serve_app

    address, number = _address(host, port)
    tokens = () if token_file is None else _tokens(token_file)
    local = ipaddress.ip_address(address).is_loopback
    settings = Settings(tokens, threads, max_body, max_batch, max_draws, pin, debug, local)
    predictor = Predictor(bundle)
    where = f"[{address}]" if ":" in address else address
    if not local and not tokens:
        typer.echo("Warning: anyone who can reach this address may use it; see --token-file.", err=True)
    if debug:
        typer.echo("Warning: --debug tells clients which member answered.", err=True)
    line = f"Serving {bundle} at http://{where}:{number}/ (checksum {predictor.bundle.checksum})"
    app = create_app(predictor, settings)
    code = 128 + serve_app(app, address, number, lambda: typer.echo(printable(line)))
    sys.stdout.flush()
    # Granian's own thread outlives its server by a moment. If Python were torn down meanwhile, the process would abort.
    os._exit(code)


def _tokens(path: Path) -> tuple[str, ...]:
    lines = read_file(path, _LONGEST_TOKENS).decode("utf-8", "replace").split("\n")
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise InputError(f"--token-file is {path}, which holds no token; write one per line")
    return found


def _address(host: str, port: int) -> tuple[str, int]:
    """The numeric address and port to listen on; port 0 takes a free one."""
    whole("--port", port, 0, 65535)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            return trial.getsockname()[:2]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host} port {port}: {reason}") from error
