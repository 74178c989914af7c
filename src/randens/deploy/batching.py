"""One queue in front of the predictor: requests that wait together are answered by one call.

While a call runs, new requests are queued; the next call takes them all. So a request never waits for another
request, and batches grow only with the load. Draws are made inside the call, one for each input.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randens.core.errors import InputError
from randens.deploy.predictor import Prediction

__all__ = ["Batcher"]

Predict = Callable[[NDArray[np.float32]], Prediction]


@dataclass(frozen=True, eq=False)
class _Waiting:
    inputs: NDArray[np.float32]
    answer: asyncio.Future[Prediction]


class Batcher:
    """Answers `submit` by calls of `predict` on at most `most` inputs, in the order of arrival, in one thread.

    All answers of a call are sent together, so that their timing reveals nothing about the draws.
    `seen` is called with the number of inputs of each call.
    """

    def __init__(self, predict: Predict, most: int, seen: Callable[[int], None] | None = None) -> None:
        self._predict = predict
        self._most = most
        self._seen = seen
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="randens-predict")
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to answer; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Answer all waiting requests, then stop."""
        self._stopping = True
        self._arrived.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown(wait=True)

    def submit(self, inputs: NDArray[np.float32]) -> asyncio.Future[Prediction]:
        """Return the answers to at most `most` inputs when they are ready; cancelling withdraws the inputs."""
        if len(inputs) > self._most:
            raise InputError(f"there are {len(inputs)} inputs; at most {self._most} go into one call")
        entry = _Waiting(inputs, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self._arrived.set()
        return entry.answer

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._take()
            if not batch:
                if self._stopping:
                    return
                self._arrived.clear()
                continue
            outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, batch)
            for entry, outcome in zip(batch, outcomes, strict=True):
                if entry.answer.done():
                    continue
                if isinstance(outcome, Prediction):
                    entry.answer.set_result(outcome)
                else:
                    entry.answer.set_exception(outcome)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        total = 0
        while self._queue and total + len(self._queue[0].inputs) <= self._most:
            entry = self._queue.popleft()
            if not entry.answer.done():
                batch.append(entry)
                total += len(entry.inputs)
        if batch and self._seen is not None:
            self._seen(total)
        return batch

    def _answer(self, batch: list[_Waiting]) -> list[Prediction | Exception]:
        if len(batch) > 1:
            ends = np.cumsum([len(entry.inputs) for entry in batch]).tolist()
            # The error is raised again below, for the request that causes it.
            with contextlib.suppress(Exception):
                whole = self._predict(np.concatenate([entry.inputs for entry in batch]))
                return [whole.part(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        # One by one, so that one request's inputs do not spoil the answers to the others.
        return [self._alone(entry) for entry in batch]

    def _alone(self, entry: _Waiting) -> Prediction | Exception:
        try:
            return self._predict(entry.inputs)
        except Exception as error:
            # The error goes to its request; the queue continues.
            return error
