"""Serve a bundle over HTTP: predictions by draws that a client cannot predict, influence or learn.

`create_app` makes the application, a plain FastAPI one; `serve` runs it behind Granian, whose options bound heads,
trailers, idle time and the number of connections. Answers are labels; the sampled member is told in debug mode only.
"""

# Annotations are evaluated here: FastAPI reads those of the methods below.
import asyncio
import hashlib
import hmac
import re
import secrets
import signal
import time
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import anyio
import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from randens.core.errors import InputError, ModelError, RandensError, whole
from randens.deploy.decoding import Decoder, Refused
from randens.deploy.predictor import Prediction, Predictor

__all__ = ["Settings", "create_app", "serve"]

CONNECTIONS = 2048
HEAD_BYTES = 16 << 10  # of a request's head; hyper limits trailers to as much
HEAD_SECONDS = 10
BODY_SECONDS = 10.0
ANSWER_SECONDS = 30.0
STOP_SECONDS = 30
# Bodies larger than this share a limit; smaller ones are always accepted.
SMALL_BODY = 64 << 10
ALL_BODIES = 256 << 20

_PATHS = ("/v1/predict", "/v1/model", "/healthz", "/readyz", "/metrics")
_COOKIE = "randens-client"
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Settings:
    """How a server behaves.

    tokens: clients must send one of them, if there are any. threads: requests computed at once. max_body: bytes.
    max_batch: inputs times draws. max_draws: for every input. pin: every client keeps the member sampled for it. debug:
    tell which member answered. local: accept only host names of this machine. key: of cookies and pinned draws.
    """

    tokens: tuple[str, ...] = field(default=(), repr=False)
    threads: int = 2
    max_body: int = 8 << 20
    max_batch: int = 256
    max_draws: int = 1
    pin: bool = False
    debug: bool = False
    local: bool = True
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        whole("threads", self.threads, 1, 256)
        whole("max_body", self.max_body, 1, 1 << 30)
        whole("max_batch", self.max_batch, 1, 1 << 16)
        whole("max_draws", self.max_draws, 1, self.max_batch)
        if self.pin and self.max_draws > 1:
            raise InputError(f"max_draws is {self.max_draws}; with pin all draws of a client are the same")
        for number, token in enumerate(self.tokens, start=1):
            if re.fullmatch(r"[!-~]{16,512}", token) is None:
                raise InputError(f"token {number} must be 16 to 512 visible ASCII characters without blanks")


class _Service:
    """The answers to all paths, from one predictor."""

    def __init__(self, predictor: Predictor, settings: Settings) -> None:
        self.predictor, self.settings, self.bundle = predictor, settings, predictor.bundle
        self.decoder = Decoder(predictor.bundle, settings.max_batch)
        self.workers = ThreadPoolExecutor(settings.threads, thread_name_prefix="randens")
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._made = Counter("randens_predictions_total", "Predictions made", registry=self.registry)
        self._tokens = [hashlib.sha256(token.encode()).digest() for token in settings.tokens]
        self._held = 0

    async def predict(self, request: Request, draws: int = 1, resize: bool = False) -> Response:
        """Classify inputs, each by a member sampled for it alone or, pinned, by the client's member."""
        settings, name = self.settings, self._client(request)
        if not 1 <= draws <= settings.max_draws:
            raise Refused(f"draws is {draws}; it must be from 1 to {settings.max_draws}")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused("the body has a content encoding; send it as it is", 415)
        kind, accepted = request.headers.get("content-type", "").partition(";")[0].lower(), self.decoder.types
        if kind not in accepted:
            raise Refused(f"content type is {kind[:80]!r}; give one of {', '.join(accepted)}", 415)
        known = name or secrets.token_urlsafe(16)
        body = bytearray()
        try:
            with anyio.fail_after(BODY_SECONDS):
                await self._receive(body, request)
            found = await self._in_thread(partial(self._predict, kind, body, draws, resize, known))
        finally:
            self._held -= len(body)
        self._made.inc(len(found))
        answers = [{"label": label, "name": self.bundle.classes[label]} for label in found.labels.tolist()]
        if settings.debug:
            told = zip(answers, found.members.tolist(), found.logits.tolist(), strict=True)
            answers = [{**answer, "member": member, "logits": logits} for answer, member, logits in told]
        response = JSONResponse({"predictions": answers})
        if settings.pin and name is None:
            signed = f"{known}.{self._digest('cookie', known).hex()}"
            response.set_cookie(_COOKIE, signed, httponly=True, samesite="strict")
        return response

    async def model(self, request: Request) -> dict[str, Any]:
        """What is served. α is public: robustness is measured against adversaries who know it."""
        self._client(request)
        names = ("max_body", "max_batch", "max_draws", "pin", "debug")
        about = {"checksum": self.bundle.checksum, "content_types": self.decoder.types}
        return {**self.bundle.to_json(), **about, **{name: getattr(self.settings, name) for name in names}}

    async def healthz(self) -> dict[str, str]:
        """Whether the server runs."""
        return {"status": "ok"}

    async def readyz(self) -> dict[str, str]:
        """Whether predictions are made: one is, after those that wait already."""
        low = 0.0 if self.bundle.bounds is None else self.bundle.bounds[0]
        example = np.full((1, *self.bundle.input_shape), low, dtype=np.float32)
        await self._in_thread(partial(self.predictor.predict, example))
        return {"status": "ready"}

    async def metrics(self, request: Request) -> Response:
        """Counters in Prometheus' text format; none per member, which would tell each draw."""
        self._client(request)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def _client(self, request: Request) -> str | None:
        """The client's name: its token or what its signed cookie says; None for a new one."""
        if self._tokens:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
            # All are compared, each in constant time.
            right = sum(hmac.compare_digest(given, known) for known in self._tokens)
            if scheme.lower() != "bearer" or not right:
                raise HTTPException(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})
            return token
        if not self.settings.pin:
            return None
        name, _, signature = request.cookies.get(_COOKIE, "").partition(".")
        right = hmac.compare_digest(self._digest("cookie", name).hex().encode(), signature.encode())
        return name if right else None

    def _digest(self, purpose: str, name: str) -> bytes:
        return hmac.digest(self.settings.key, f"{purpose} {name}".encode("utf8", "surrogateescape"), "sha256")

    async def _receive(self, body: bytearray, request: Request) -> None:
        total, most = 0, self.settings.max_body
        async for piece in request.stream():
            total += len(piece)
            # The rest of a body that is too large is read and dropped, because a client that sends hears no answer.
            if total <= most:
                body += piece
                self._held += len(piece)
                if len(body) > SMALL_BODY and self._held > ALL_BODIES:
                    raise Refused("too many large bodies are being received; try later", 503)
        if total > most:
            raise Refused(f"the body has {total} bytes; at most {most} are accepted", 413)

    async def _in_thread(self, work: Callable[[], Prediction]) -> Prediction:
        future = asyncio.get_running_loop().run_in_executor(self.workers, work)
        await asyncio.wait([future], timeout=ANSWER_SECONDS)
        if future.done():
            return future.result()
        future.cancel()
        raise Refused(f"no answer within {ANSWER_SECONDS:g} seconds; try later", 503)

    def _predict(self, kind: str, body: bytearray, draws: int, resize: bool, client: str) -> Prediction:
        inputs, most = self.decoder.decode(kind, body, resize), self.settings.max_batch
        if len(inputs) * draws > most:
            raise Refused(f"there are {len(inputs)} inputs with {draws} draws; at most {most} in all", 413)
        member = None
        if self.settings.pin:
            # A uniform number that is always the same for a client, and unknown without the key.
            point = np.frombuffer(self._digest("draw", client)[:8], dtype=np.uint64)
            member = int(self.predictor.members_at(point)[0])
        return self.predictor.predict(np.repeat(inputs, draws, axis=0), member)


def create_app(predictor: Predictor, settings: Settings | None = None) -> FastAPI:
    """The application that serves `predictor`."""
    service = _Service(predictor, settings or Settings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.workers.shutdown(wait=True)

    app = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    app.add_api_route("/v1/predict", service.predict, methods=["POST"])
    app.add_api_route("/v1/model", service.model)
    app.add_api_route("/healthz", service.healthz)
    app.add_api_route("/readyz", service.readyz)
    app.add_api_route("/metrics", service.metrics)
    for kind in (RequestValidationError, RandensError, ClientDisconnect, TimeoutError):
        app.add_exception_handler(kind, _problem)
    if service.settings.local:
        # No web page can reach the server under a name of its own.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(_LOCAL), www_redirect=False)
    app.add_middleware(_Watched, registry=service.registry)
    return app


class _Watched:
    """Counts and times every request, and adds the headers that all answers have."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "randens_requests_total", "Requests answered", ("path", "status"), registry=registry
        )
        self._seconds = Histogram(
            "randens_request_seconds", "Time of a request", ("path",), registry=registry, buckets=_SECONDS
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            # Only known paths, because clients could otherwise fill the memory with names.
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self._requests.labels(path, str(status)).inc()
            self._seconds.labels(path).observe(time.perf_counter() - began)


async def _problem(_: Request, error: Exception) -> JSONResponse:
    """Every error in the same form: a sentence under "detail"."""
    status, reason = 422, str(error)
    if isinstance(error, Refused):
        status = error.status
    elif isinstance(error, ModelError):
        status = 500
    elif isinstance(error, ClientDisconnect):
        status, reason = 400, "the connection was closed before the body was complete"
    elif isinstance(error, TimeoutError):
        status, reason = 408, f"the body was not complete after {BODY_SECONDS:g} seconds"
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        reason = f"{'.'.join(str(part)[:40] for part in first['loc'])}: {first['msg'][:160]}"
    return JSONResponse({"detail": reason}, status, headers={"Retry-After": "1"} if status == 503 else None)


def serve(app: FastAPI, host: str, port: int, started: Callable[[], None]) -> int:
    """Answer until SIGINT or SIGTERM, finish what was begun, return the signal; `started` is called when ready."""
    with warnings.catch_warnings():
        # Pillow's warnings hold numbers from pictures: Python would print and remember each of them.
        warnings.simplefilter("ignore")
        return asyncio.run(_serve(app, host, port, started))


async def _serve(app: FastAPI, host: str, port: int, started: Callable[[], None]) -> int:
    server = Server(
        app,
        host,
        port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=CONNECTIONS,
        backpressure=CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=1000 * HEAD_SECONDS, max_buffer_size=HEAD_BYTES),
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()

    def stop(number: int, _: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(signals.put_nowait, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        # Not loop.add_signal_handler, whose pipe drops signals while many requests come in.
        signal.signal(number, stop)
    received = loop.create_task(signals.get())
    running = loop.create_task(server.serve())
    accepted = loop.create_task(_accepted(host, port))
    await asyncio.wait([running, accepted], return_when="FIRST_COMPLETED")
    if accepted.done():
        started()
    await asyncio.wait([running, received], return_when="FIRST_COMPLETED")
    if running.done():
        raise ModelError("the HTTP server ended by itself") from running.exception()
    server.stop()  # type: ignore[no-untyped-call]
    await asyncio.wait([running], timeout=STOP_SECONDS)
    return received.result()


async def _accepted(host: str, port: int) -> None:
    """Return when a connection is accepted."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.01)
