"""Serve a bundle over HTTP: predictions by fresh draws that a client cannot predict, influence or learn.

`create_app` makes the application, `serve` runs it. The answer to an input is a label; the member that gave
it is reported in debug mode only.
"""

# Annotations are evaluated here: FastAPI reads those of the local functions below.
import asyncio
import base64
import contextlib
import ctypes
import gc
import hashlib
import hmac
import ipaddress
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any

import msgspec
import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from randens._version import __version__
from randens.core.errors import InputError, RandensError
from randens.core.files import picked
from randens.deploy.batching import Batcher
from randens.deploy.connections import UNREAD_BYTES, protocol
from randens.deploy.decoding import Decoder, Refused
from randens.deploy.intake import Intake
from randens.deploy.limits import Limits
from randens.deploy.metrics import Metrics
from randens.deploy.predictor import Prediction, Predictor

__all__ = [
    "Limits",
    "Settings",
    "create_app",
    "is_loopback",
    "listen",
    "loopback_hosts",
    "make_server",
    "serve",
]

_PATHS = ("/", "/v1/predict", "/v1/model", "/v1/samples", "/healthz", "/metrics", "/openapi.json")
_INLINE = 1 << 12  # larger bodies are decoded in a thread, so that other requests do not wait
_DECODERS = 2
_BACKLOG = 1024
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER
_TURN_SECONDS = 0.0005
_CLOSE = {"Connection": "close"}
_LATER = {"Retry-After": "1", **_CLOSE}
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Settings:
    """How a server behaves. token: required from clients if not None. debug: say which member answered, with its
    logits. hosts: accepted Host headers; None accepts any."""

    limits: Limits = field(default_factory=Limits)
    token: str | None = field(default=None, repr=False)
    debug: bool = False
    hosts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < 16:
            raise InputError(f"token has {len(self.token)} characters; it must have at least 16")


class Answer(BaseModel):
    """One prediction."""

    label: int
    name: str


class DebugAnswer(Answer):
    """One prediction, and the member that made it."""

    member: int
    logits: list[float]


class Answers(BaseModel):
    """Predictions in the order of the inputs; with draws = k, k consecutive ones for every input."""

    predictions: list[Answer]


class DebugAnswers(BaseModel):
    """Predictions in the order of the inputs; with draws = k, k consecutive ones for every input."""

    predictions: list[DebugAnswer]


class Model(BaseModel):
    """The served model. Probabilities are public: robustness is measured against adversaries who know them."""

    input_shape: list[int]
    bounds: list[float] | None
    classes: list[str]
    members: int
    probs: list[float]
    threat: dict[str, Any] | None
    precision: str
    opset: int
    checksum: str
    sign_off: dict[str, Any]
    content_types: list[str]
    limits: dict[str, float]
    debug: bool
    version: str


class SamplePicture(BaseModel):
    """A picture from the bundle: its true label and a PNG file in base64."""

    label: int
    name: str
    png: str


class Health(BaseModel):
    """Whether predictions are being made."""

    status: str


class Problem(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


def create_app(predictor: Predictor, settings: Settings | None = None) -> FastAPI:
    """The application that serves `predictor`."""
    chosen = settings or Settings()
    limits, bundle = chosen.limits, predictor.bundle
    decoder = Decoder.of(bundle, limits.batch, limits.pixels)
    metrics = Metrics(draws=chosen.debug)
    batcher = Batcher(predictor.predict, limits.batch, metrics.call)
    decoders, intake = ThreadPoolExecutor(_DECODERS, thread_name_prefix="randens-decode"), Intake(limits)
    page, policy = _page()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        batcher.start()
        try:
            yield
        finally:
            await batcher.stop()
            decoders.shutdown(wait=True)

    app = FastAPI(
        title="randens",
        version=__version__,
        description="Predictions of a randomized ensemble: a fresh draw of one member for every input.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    _explain_refusals(app)
    bearer = HTTPBearer(auto_error=False, description="The token the server was started with.")

    def authorize(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if chosen.token is None or (given is not None and _same(given.credentials, chosen.token)):
            return
        raise HTTPException(401, "a valid bearer token is needed", headers={"WWW-Authenticate": "Bearer"})

    guarded = [Depends(authorize)] if chosen.token is not None else []
    refusals: dict[int | str, dict[str, Any]] = {401: {"model": Problem}} if chosen.token is not None else {}
    problems = {status: {"model": Problem} for status in (408, 413, 415, 422, 429, 503)} | refusals

    async def decode(media_type: str, body: bytearray, resize: bool) -> Any:
        # A small file can hold a large picture.
        if len(body) <= _INLINE and not media_type.startswith("image/"):
            return decoder.decode(media_type, body, resize)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(decoders, decoder.decode, media_type, body, resize)

    def said(prediction: Prediction) -> list[dict[str, Any]]:
        labels = prediction.labels.tolist()
        answers: list[dict[str, Any]] = [{"label": i, "name": bundle.classes[i]} for i in labels]
        if chosen.debug:
            members = prediction.members.tolist()
            metrics.drawn(members)
            for answer, member, logits in zip(answers, members, prediction.logits.tolist(), strict=True):
                answer.update(member=member, logits=logits)
        return answers

    async def work(request: Request, draws: int, resize: bool) -> Response:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "the body has a content encoding; send it as it is")
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in decoder.types:
            raise Refused(
                415, f"content type is {media_type[:80]!r}; it must be one of {', '.join(decoder.types)}"
            )
        async with intake.receive(request) as body:
            # The slot is taken only now, so that a body that arrives slowly does not block others.
            with slot():
                return await answer(await decode(media_type, body, resize), draws)

    async def answer(inputs: Any, draws: int) -> Response:
        if len(inputs) * draws > limits.batch:
            raise Refused(
                413,
                f"{len(inputs)} inputs with {draws} draws each; at most {limits.batch} in all are accepted",
            )
        repeated = np.repeat(inputs, draws, axis=0) if draws > 1 else inputs
        try:
            prediction = await asyncio.wait_for(batcher.submit(repeated), limits.answer_seconds)
        except asyncio.TimeoutError:
            raise Refused(503, f"no answer within {limits.answer_seconds:g} seconds; try later") from None
        return Response(msgspec.json.encode({"predictions": said(prediction)}), media_type="application/json")

    class Direct(APIRoute):
        """FastAPI describes this route; requests that need no validation bypass it, at half the cost."""

        async def handle(self, scope: Message, receive: Receive, send: Send) -> None:
            if scope["method"] != "POST" or scope["query_string"] or chosen.token is not None:
                await super().handle(scope, receive, send)
                return
            response = await work(Request(scope, receive), 1, False)
            await response(scope, receive, send)

    active = 0

    @contextlib.contextmanager
    def slot() -> Iterator[None]:
        nonlocal active
        if active >= limits.active:
            raise Refused(429, f"{active} requests are being worked on; try again in a moment")
        active += 1
        metrics.active.set(active)
        try:
            yield
        finally:
            active -= 1
            metrics.active.set(active)

    async def predict(
        request: Request,
        draws: Annotated[
            int, Query(ge=1, le=limits.batch, description="Independent predictions for every input.")
        ] = 1,
        resize: Annotated[bool, Query(description="Let pictures have any size.")] = False,
    ) -> Response:
        """Classify inputs, each by a member drawn for it alone."""
        return await work(request, draws, resize)

    app.router.add_api_route(
        "/v1/predict",
        predict,
        methods=["POST"],
        route_class_override=Direct,
        response_model=DebugAnswers if chosen.debug else Answers,
        responses=problems,
        dependencies=guarded,
        openapi_extra={"requestBody": _body_schema(decoder)},
    )

    @app.get("/v1/model", responses=refusals, dependencies=guarded)
    async def model() -> Model:
        """What is served, and within which limits."""
        public = picked(bundle, "input_shape bounds classes probs threat precision opset checksum sign_off")
        return Model(
            **public,
            members=len(bundle.probs),
            content_types=list(decoder.types),
            limits={name: float(value) for name, value in vars(limits).items()},
            debug=chosen.debug,
            version=__version__,
        )

    @app.get("/v1/samples", responses=refusals, dependencies=guarded)
    async def samples() -> list[SamplePicture]:
        """Sample pictures of the bundle, which the page shows."""
        return [
            SamplePicture(label=sample.label, name=bundle.classes[sample.label], png=sample.png)
            for sample in bundle.samples
        ]

    @app.get("/healthz", responses={503: {"model": Problem}})
    async def healthz() -> Health:
        """Whether predictions are being made."""
        if not batcher.alive:
            raise Refused(503, "predictions are not being made")
        return Health(status="ok")

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals},
        dependencies=guarded,
    )
    async def metrics_() -> Response:
        """Counters in Prometheus' text format."""
        return Response(metrics.text(), media_type=metrics.media_type)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> HTMLResponse:
        """A page to try the model on."""
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    if chosen.hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(chosen.hosts), www_redirect=False)
    app.add_middleware(_Watched, metrics=metrics)
    return app


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket listening at the address; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"port is {port}; it must be from 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # TCP is named, because asyncio otherwise leaves Nagle's algorithm on and every answer waits 40 ms.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise InputError(f"host is {host!r}, which is no address of this machine ({error})") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        bound.bind((host, port))
        # From here on clients may connect; they are answered as soon as the server runs.
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise InputError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return bound


def serve(app: FastAPI, bound: socket.socket, limits: Limits | None = None) -> int | None:
    """Answer requests on a bound socket until SIGINT or SIGTERM; then finish what was begun and return the signal."""
    before = sys.getswitchinterval()
    # Threads that decode bodies yield to the answering thread sooner than by default.
    sys.setswitchinterval(_TURN_SECONDS)
    # Modules and the application live as long as the process. Going through them again in every full collection would
    # make all requests wait for about 40 ms.
    gc.collect()
    gc.freeze()
    try:
        with _signals_kept() as seen:
            make_server(app, limits or Limits()).run(sockets=[bound])
        return seen[0] if seen else None
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


def loopback_hosts() -> tuple[str, ...]:
    """The Host headers that a server on loopback accepts, so that no web page can reach it by its own name."""
    return "localhost", "127.0.0.1", "[::1]"


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """The server that `serve` runs; setting its `should_exit` stops it gracefully."""
    return _Server(
        uvicorn.Config(
            app,
            http=protocol(limits),
            # Its transports can limit how much they read from a socket at a time. uvloop's read 256 KiB, and
            # where many send large bodies all others wait.
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=int(np.ceil(limits.stop_seconds)),
        )
    )


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Connections that the kernel has taken already would be cut when the socket is closed. So it takes no more,
        # and those are accepted first.
        for bound in sockets or []:
            _take_no_more(bound)
        for _ in range(4):
            await asyncio.sleep(0)
        await super().shutdown(sockets)


def _take_no_more(bound: socket.socket) -> None:
    """Let the kernel drop requests for new connections; the client tries again and is then refused.

    This uses a packet filter of one instruction, `return 0`, where packet filters exist (Linux).
    """
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    with contextlib.suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


@contextlib.contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """Record signals for the caller; uvicorn stops gracefully on signals but then raises them again."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: seen.append(number)) for number in wanted]
    try:
        yield seen
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)


class _Watched:
    """Counts and times every request, and adds the headers that all answers have."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
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
            self._metrics.request(path, status, time.perf_counter() - began)


def _explain_refusals(app: FastAPI) -> None:
    """Every error in the same form: a sentence under "detail"."""

    async def problem(_: Request, error: Exception) -> JSONResponse:
        status, reason = error.status if isinstance(error, Refused) else 422, str(error)
        if isinstance(error, ClientDisconnect):
            status, reason = 400, "the connection was closed before the body was complete"
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(str(part)[:40] for part in first['loc'])}: {first['msg'][:160]}"
        # If a body was not read to its end, the next bytes on the connection are not a request.
        headers = {429: _LATER, 503: _LATER, 408: _CLOSE, 413: _CLOSE}.get(status)
        return JSONResponse({"detail": reason}, status, headers=headers)

    for kind in (RequestValidationError, RandensError, ClientDisconnect):
        app.add_exception_handler(kind, problem)


def _same(given: str, token: str) -> bool:
    """Compare in a time that reveals neither how much is correct nor how long the token is."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, token)]
    return hmac.compare_digest(*digests)


def _body_schema(decoder: Decoder) -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    json_schema = {"schema": decoder.schema.model_json_schema()}
    content = {kind: json_schema if kind == "application/json" else binary for kind in decoder.types}
    return {"required": True, "content": content}


def _page() -> tuple[str, str]:
    """Return the page, and the policy that allows only its own script."""
    text = resources.files("randens.deploy").joinpath("page.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts
    )
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy
