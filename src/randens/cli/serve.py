"""`randens serve`: serve a bundle over HTTP."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from randens.core.errors import FileError
from randens.deploy.predictor import Predictor
from randens.deploy.server import Limits, Settings, create_app, is_loopback, listen, loopback_hosts
from randens.deploy.server import serve as serve_app

_USUAL = Limits()


def serve(
    bundle: Annotated[Path, typer.Argument(help="A bundle made by `randens export`.")],
    host: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients must send as a bearer token.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name under which clients may reach the server; repeatable.")
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Tell clients which member answered. Never in production.")
    ] = False,
    lean: Annotated[bool, typer.Option("--lean", help="Keep only members just drawn in memory.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of ONNX Runtime.")] = 1,
    expect: Annotated[str | None, typer.Option(help="Refuse a bundle with another checksum.")] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body.")] = _USUAL.body,
    max_pixels: Annotated[int, typer.Option(help="Pixels of a picture.")] = _USUAL.pixels,
    max_batch: Annotated[int, typer.Option(help="Inputs times draws of a request.")] = _USUAL.batch,
    max_active: Annotated[int, typer.Option(help="Requests processed at once.")] = _USUAL.active,
    max_flight: Annotated[int, typer.Option(help="Bytes of all bodies in memory.")] = _USUAL.flight,
    max_connections: Annotated[int, typer.Option(help="Open connections.")] = _USUAL.connections,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = _USUAL.answer_seconds,
    head_timeout: Annotated[
        float, typer.Option(help="Seconds for the head of a request.")
    ] = _USUAL.head_seconds,
    body_timeout: Annotated[
        float, typer.Option(help="Seconds for the body of a request.")
    ] = _USUAL.body_seconds,
    write_timeout: Annotated[
        float, typer.Option(help="Seconds for a client to read its answer.")
    ] = _USUAL.write_seconds,
    stop_timeout: Annotated[
        float, typer.Option(help="Seconds to finish after a stop signal.")
    ] = _USUAL.stop_seconds,
) -> None:
    """Serve BUNDLE over HTTP until interrupted: POST /v1/predict, and a page at / to try it.

    It needs the extra `deploy`. After Ctrl-C or SIGTERM it answers all
    accepted requests and ends with exit code 130 or 143.

    Example: randens serve runs/quickstart-1/bundle --port 8000
    """
    limits = Limits(
        body=max_body,
        pixels=max_pixels,
        batch=max_batch,
        active=max_active,
        flight=max_flight,
        connections=max_connections,
        answer_seconds=timeout,
        head_seconds=head_timeout,
        body_seconds=body_timeout,
        write_seconds=write_timeout,
        stop_seconds=stop_timeout,
    )
    local = is_loopback(host)
    hosts = tuple(allow_host) if allow_host else (loopback_hosts() if local else None)
    settings = Settings(limits, None if token_file is None else _token(token_file), debug, hosts)
    if bundle.is_dir() and not (bundle / "bundle.json").is_file():
        there = bundle / "bundle"
        hint = f"did you mean {there}?" if there.is_dir() else "`randens export RUN` makes one"
        raise FileError(f"{bundle} is not a bundle: it has no bundle.json; {hint}")
    predictor = Predictor(bundle, lean=lean, threads=threads, expect=expect)
    bound = listen(host, port)
    address, number = bound.getsockname()[:2]
    where = f"[{address}]" if ":" in address else address
    typer.echo(f"Serving {bundle} at http://{where}:{number}/ (checksum {predictor.bundle.checksum})")
    if not local and settings.token is None:
        typer.echo("Warning: anyone who can reach this address may use it; see --token-file.", err=True)
    if debug:
        typer.echo("Warning: --debug tells clients which member answered.", err=True)
    number = serve_app(create_app(predictor, settings), bound, limits)
    if number is not None:
        signal.raise_signal(number)  # ends like every other command


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the token from {path}: {error}") from error
