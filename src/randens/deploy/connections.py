"""uvicorn's HTTP protocol with limits on what a connection may do without sending a request.

Connections are cheap for a client but not for a server. These connections are closed: one whose head is late
or too long, one that does not read its answers, one that sends its body in tiny pieces or many requests
ahead, and, if there are too many, the one that has been idle or sending longest. uvicorn has no options for
any of these.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from randens.deploy.limits import Limits

__all__ = ["HEAD_BYTES", "PIPELINE", "UNREAD_BYTES", "protocol"]

HEAD_BYTES = 16 << 10
"""Bytes of a request's head."""
PIPELINE = 32
"""Requests that a connection may send before the first of them is answered."""
UNREAD_BYTES = 64 << 10
"""Bytes that the kernel may hold for a client that does not read: they are memory too."""

# Pieces of a body: 256, and one more for every 64 bytes. Each costs as much as a kilobyte does.
_PIECES, _PIECE_BYTES = 256, 64
_TURN = 16 << 10
_FRESH_SECONDS = 1.0
_REASON = b'{"detail":"too many connections are open; try later"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%s"
) % (len(_REASON), _REASON)


class _TooMuch(Exception):
    """Raised in a callback of the parser, which then stops; uvicorn answers with 400 and closes."""


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class of a server with these limits."""

    class Patient(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None
        _since = 0.0
        _head = 0
        _in_head = True
        _pieces = 0
        _bytes = 0

        # ---- how many ----

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # Any byte that the client has not read starts the timeout, also while it is being closed.
            transport.set_write_buffer_limits(0)
            # Of asyncio's own transports: bytes taken from a socket before it is another one's turn.
            transport.max_size = _TURN
            self._since = self.loop.time()
            if len(self.connections) > limits.connections and not self._close_oldest():
                transport.write(_FULL)
                transport.close()
                return
            self._watch()

        def _close_oldest(self) -> bool:
            """Close the connection that has gone longest without a complete request; return whether there was one."""
            others = [
                c for c in self.connections if isinstance(c, Patient) and c is not self and c._dispensable
            ]
            if not others:
                return False
            oldest = min(others, key=lambda c: c._since)
            self.connections.discard(oldest)
            oldest.transport.abort()
            return True

        @property
        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        @property
        def _dispensable(self) -> bool:
            return self._idle or self.cycle.more_body

        def on_response_complete(self) -> None:
            self._since = self.loop.time()
            super().on_response_complete()

        # ---- how much ----

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head = True
            self._pieces = self._bytes = 0

        def on_headers_complete(self) -> None:
            self._in_head, self._head = False, 0
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
                raise _TooMuch("the head is too long")
            if len(self.pipeline) >= PIPELINE:
                raise _TooMuch("too many requests are sent ahead")
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._pieces += 1
            self._bytes += len(body)
            if self._pieces > _PIECES + self._bytes // _PIECE_BYTES:
                raise _TooMuch("the body arrives in too many small pieces")
            super().on_body(body)

        # ---- how long ----

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head and not self.transport.is_closing():
                # The parser keeps all bytes of an incomplete head.
                self._head += len(data)
                if self._head > HEAD_BYTES:
                    self.send_400_response("The head of the request is too long.")
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            if self._unread is not None:
                self._unread.cancel()
            self.pipeline.clear()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._unread is None:
                self._unread = self.loop.call_later(limits.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None
            super().resume_writing()

        def _watch(self) -> None:
            if not self._idle:
                self._unwatch()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(limits.head_seconds, self._give_up)

        def _unwatch(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._deadline = None
            if self._idle:
                self.transport.close()

        # ---- the end ----

        def shutdown(self) -> None:
            """Finish requests in progress; a very new connection may still send its request."""
            if self.cycle is not None or self.transport.is_closing():
                super().shutdown()
                return
            self.loop.call_later(_FRESH_SECONDS, self._shut)

        def _shut(self) -> None:
            if not self.transport.is_closing():
                super().shutdown()

    return Patient
