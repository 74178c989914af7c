"""Request bodies while they arrive: how much memory all of them take together is bounded.

A body that arrives slowly costs its bytes and nothing else. Where the bytes run out, the body that has been arriving
longest is given up, so that those who send quickly are served however many send slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from randens.deploy.decoding import Refused
from randens.deploy.limits import Limits

__all__ = ["Intake"]


class _Body:
    """A body as far as it has arrived."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.reader: asyncio.Task[None] | None = None
        self.given_up = False


class Intake:
    """Receives bodies within `limits.body`, `limits.body_seconds` and, together, `limits.flight`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._arriving: dict[_Body, None] = {}  # in the order in which they began
        self.held = 0
        """Bytes in memory."""

    @contextlib.asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytearray]:
        """The complete body; its bytes count until the context ends."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._limits.body:
            raise Refused(
                413, f"the body has {declared[:20]} bytes; at most {self._limits.body} are accepted"
            )
        body = _Body()
        try:
            await self._arrive(body, request)
            yield body.content
        finally:
            self.held -= len(body.content)
            body.content = bytearray()

    async def _arrive(self, body: _Body, request: Request) -> None:
        seconds = self._limits.body_seconds
        self._arriving[body] = None
        body.reader = asyncio.get_running_loop().create_task(self._read(body, request))
        try:
            await asyncio.wait_for(body.reader, seconds)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {seconds:g} seconds") from None
        except asyncio.CancelledError:
            if body.given_up:
                raise Refused(
                    503, "too many bodies arrive at once and this one is the oldest; try later"
                ) from None
            raise
        finally:
            self._arriving.pop(body, None)

    async def _read(self, body: _Body, request: Request) -> None:
        async for part in request.stream():
            if len(body.content) + len(part) > self._limits.body:
                raise Refused(413, f"the body is larger than {self._limits.body} bytes")
            self._make_room(len(part))
            if body.given_up:
                return  # its cancellation is on the way
            body.content += part
            self.held += len(part)

    def _make_room(self, size: int) -> None:
        for oldest in list(self._arriving):
            if self.held + size <= self._limits.flight:
                return
            del self._arriving[oldest]
            oldest.given_up = True
            self.held -= len(oldest.content)
            oldest.content = bytearray()
            if oldest.reader is not None:
                oldest.reader.cancel()
        if self.held + size > self._limits.flight:
            # All of it belongs to complete bodies, which are soon decoded.
            raise Refused(429, "too many bytes wait to be decoded; try again in a moment")
