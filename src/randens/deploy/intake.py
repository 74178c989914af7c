"""Receive request bodies with a bound on their total memory.

A body that arrives slowly costs only its bytes. When the bytes run out, the unfinished body that has taken
longest is dropped, so that fast clients are served even with many slow ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from starlette.requests import Request

from randens.deploy.decoding import Refused
from randens.deploy.limits import Limits

__all__ = ["Intake"]

_TOO_MANY = "too many bodies arrive at once and this one is the oldest; try later"


class _Body:
    """The received part of a body, and the task that reads it."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.reader = asyncio.current_task()
        self.reason: Refused | None = None

    def give_up(self, reason: Refused) -> None:
        """Interrupt the reader, which then raises `reason`."""
        self.reason = reason
        if self.reader is not None and self.reader is not asyncio.current_task():
            self.reader.cancel()


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
        late = Refused(408, f"the body did not arrive within {seconds:g} seconds")
        # The request's own task is interrupted: a task per body would take longer than reading most.
        timer = asyncio.get_running_loop().call_later(seconds, body.give_up, late)
        self._arriving[body] = None
        try:
            async for part in request.stream():
                if len(body.content) + len(part) > self._limits.body:
                    raise Refused(413, f"the body is larger than {self._limits.body} bytes")
                self._make_room(len(part))
                if body.reason is not None:
                    raise body.reason
                body.content += part
                self.held += len(part)
        except asyncio.CancelledError:
            if body.reason is None:
                raise
            if sys.version_info >= (3, 11) and body.reader is not None:
                body.reader.uncancel()
            raise body.reason from None
        finally:
            timer.cancel()
            self._arriving.pop(body, None)

    def _make_room(self, size: int) -> None:
        while self._arriving and self.held + size > self._limits.flight:
            oldest = next(iter(self._arriving))
            del self._arriving[oldest]
            self.held -= len(oldest.content)
            oldest.content = bytearray()
            oldest.give_up(Refused(503, _TOO_MANY))
        if self.held + size > self._limits.flight:
            # All bytes belong to complete bodies, which will be decoded soon.
            raise Refused(429, "too many bytes wait to be decoded; try again in a moment")
