"""uvicorn's HTTP protocol with limits on what a connection may do without sending a request.

Connections are cheap for a client and not for a server. Each of these is closed in time: one whose head does not
arrive, one that does not read its answers, one that sends its body in crumbs, and, where there are too many, the one
that has been idle or sending longest.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from randens.deploy.limits import Limits

__all__ = ["HEAD_BYTES", "protocol"]

HEAD_BYTES = 16 << 10
"""Bytes of a request's head."""

# Pieces of a body: 1,024, and one more for every 64 bytes. Each costs the parser as much as a kilobyte does.
_PIECES, _PIECE_BYTES = 1024, 64
_TURN = 32 << 10
_UNREAD_BYTES = 64 << 10
_FRESH_SECONDS = 1.0
_REASON = b'{"detail":"too many connections are open; try later"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%s"
) % (len(_REASON), _REASON)


class _Frugal(h11.Connection):
    """Refuses bodies in many small pieces."""

    _pieces = 0
    _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _PIECES + self._bytes // _PIECE_BYTES:
                raise h11.RemoteProtocolError("the body arrives in too many small pieces")
        elif isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        return event


def protocol(limits: Limits) -> type[H11Protocol]:
    """The protocol class of a server with these limits."""

    class Patient(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None
        _since = 0.0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.conn = _Frugal(h11.SERVER, HEAD_BYTES)

        # ---- how many ----

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # Every byte that the client has not taken starts the clock, also while the connection is being closed.
            transport.set_write_buffer_limits(0)
            bound = transport.get_extra_info("socket")
            if bound is not None:
                # What the kernel holds for a client that does not read is memory too.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
            # Of asyncio's own transports: bytes taken from a socket before it is another one's turn.
            transport.max_size = _TURN
            self._since = self.loop.time()
            if len(self.connections) > limits.connections and not self._close_oldest():
                transport.write(_FULL)
                transport.close()
                return
            self._watch()

        def _close_oldest(self) -> bool:
            """Close the connection that has sent nothing complete for longest, and say whether there was one."""
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

        # ---- how long ----

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            if self._unread is not None:
                self._unread.cancel()
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
            """Finish what was begun; a connection that is too young to have sent its request may still do so."""
            if self.cycle is not None or self.transport.is_closing():
                super().shutdown()
                return
            self.loop.call_later(_FRESH_SECONDS, self._shut)

        def _shut(self) -> None:
            if not self.transport.is_closing():
                super().shutdown()

    return Patient
