"""Counters of the server for Prometheus. There is no counter per member unless the server runs in debug mode,
because a client that reads it would learn each draw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counters of one server, separate from those of other servers in the process."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, draws: bool) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._requests = counter("randens_requests_total", "Requests answered", ("path", "status"))
        self._seconds = histogram(
            "randens_request_seconds", "Time to answer a request", ("path",), buckets=_SECONDS
        )
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._inputs = histogram(
            "randens_call_inputs", "Inputs answered by one call of the predictor", buckets=_SIZES
        )
        self.active = Gauge("randens_active_requests", "Predictions being worked on", registry=registry)
        said = "Draws of each member (debug mode)"
        self._draws = counter("randens_draws_total", said, ("member",)) if draws else None

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request. `path` is one of a few known paths, each with its own counter."""
        found = self._known.get((path, status))
        if found is None:  # looked up once, because the look-up takes longer than counting
            found = self._requests.labels(path, str(status)), self._seconds.labels(path)
            self._known[path, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def call(self, inputs: int) -> None:
        """Count a call of the predictor."""
        self._inputs.observe(inputs)

    def drawn(self, members: Sequence[int]) -> None:
        """Count drawn members; in debug mode only."""
        if self._draws is not None:
            for member in members:
                self._draws.labels(str(member)).inc()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)
