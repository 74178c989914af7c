"""Limits of the server per client and for all clients together."""

from __future__ import annotations

from dataclasses import dataclass

from randens.core.errors import InputError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Limits of a server, checked before memory or time is spent.

    body: bytes of one request's body. pixels: of a picture. batch: inputs times draws of a request, and of one call
    of the predictor. active: requests that are decoded or predicted at once (slots); a slot is taken when the body is
    complete. flight: bytes of all bodies in memory, arriving or waiting to be decoded; beyond it the unfinished body
    that has taken longest is dropped. connections: open ones; beyond it the one that has been idle or sending longest
    is closed. head_seconds, body_seconds, answer_seconds, write_seconds, stop_seconds: for the head of a request, for
    its body, for its answer, for a client to read its answer, and for the server to finish after a stop signal.
    """

    body: int = 8 << 20
    pixels: int = 1 << 24
    batch: int = 256
    active: int = 64
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    answer_seconds: float = 30.0
    stop_seconds: float = 30.0
    flight: int = 256 << 20
    connections: int = 512
    write_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not value > 0:
                raise InputError(f"{name} is {value!r}; it must be a number > 0")
        if self.flight < self.body:
            raise InputError(f"flight is {self.flight}; it must be at least body, which is {self.body}")
