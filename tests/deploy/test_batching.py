"""Requests that wait at the same time share one call and no draw."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.deploy.planted import chi_squared, telling_bundle

from randens.core.errors import InputError, ModelError
from randens.deploy import Prediction, Predictor
from randens.deploy.batching import Batcher


class Gated:
    """Echoes each input's first value as its label; the first call waits until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls: list[int] = []

    def __call__(self, x: NDArray[np.float32]) -> Prediction:
        self.calls.append(len(x))
        assert self.gate.wait(300)
        if (x < 0).any():
            raise ModelError("an input makes the classifier return NaN")
        labels = x[:, 0].astype(np.int64)
        return Prediction(labels, x, labels)


def inputs(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)[:, None]


async def settled(batcher: Batcher, waiting: int) -> None:
    while batcher.waiting < waiting:
        await asyncio.sleep(0.001)


def test_what_waits_together_goes_together_and_comes_back_in_place() -> None:
    async def scenario() -> None:
        predict = Gated()
        sizes: list[int] = []
        batcher = Batcher(predict, 6, sizes.append)
        batcher.start()
        first = asyncio.ensure_future(batcher.submit(inputs(7)))
        while not predict.calls:
            await asyncio.sleep(0.001)
        others = [asyncio.ensure_future(batcher.submit(inputs(*range(k, k + k % 3 + 1)))) for k in range(8)]
        await settled(batcher, 8)
        predict.gate.set()
        assert (await first).labels.tolist() == [7]
        answers = [(await task).labels.tolist() for task in others]
        assert answers == [list(range(k, k + k % 3 + 1)) for k in range(8)]
        # 1 | 1+2+3 | 1+2+3 | 1+2: as much as fits, in the order of arrival.
        assert predict.calls == sizes == [1, 6, 6, 3]
        await batcher.stop()

    asyncio.run(scenario())


def test_one_bad_request_does_not_affect_the_others_of_its_call() -> None:
    async def scenario() -> None:
        predict = Gated()
        batcher = Batcher(predict, 10)
        batcher.start()
        first = asyncio.ensure_future(batcher.submit(inputs(0)))
        while not predict.calls:
            await asyncio.sleep(0.001)
        tasks = [asyncio.ensure_future(batcher.submit(inputs(v))) for v in (1, -1, 3)]
        await settled(batcher, 3)
        predict.gate.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert isinstance(results[2], ModelError)
        good = [r.labels.tolist() for r in results if isinstance(r, Prediction)]
        assert good == [[0], [1], [3]]
        assert batcher.alive
        assert (await batcher.submit(inputs(4))).labels.tolist() == [4]
        await batcher.stop()

    asyncio.run(scenario())


def test_withdrawn_requests_are_not_computed_and_stopping_answers_the_rest() -> None:
    async def scenario() -> None:
        predict = Gated()
        batcher = Batcher(predict, 2)
        batcher.start()
        tasks = [asyncio.ensure_future(batcher.submit(inputs(v))) for v in range(6)]
        while not predict.calls:
            await asyncio.sleep(0.001)
        tasks[2].cancel()
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        predict.gate.set()
        await stopping
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [a.labels.tolist() for a in answers if isinstance(a, Prediction)] == [[0], [1], [3], [4], [5]]
        assert sum(predict.calls) == 5
        assert not batcher.alive

    asyncio.run(scenario())


def test_more_than_fits_into_a_call_is_refused() -> None:
    async def scenario() -> None:
        batcher = Batcher(Gated(), 2)
        with pytest.raises(InputError, match="3 inputs; at most 2"):
            await batcher.submit(inputs(1, 2, 3))
        await batcher.stop()

    asyncio.run(scenario())


def test_inputs_of_one_call_have_draws_of_their_own(tmp_path: Path) -> None:
    probs = (0.5, 0.5)
    predictor = Predictor(telling_bundle(tmp_path / "b", probs))

    async def scenario() -> tuple[list[int], list[int]]:
        sizes: list[int] = []
        batcher = Batcher(predictor.predict, 64, sizes.append)
        x = np.zeros((1, 1, 2, 2), dtype=np.float32)
        tasks = [asyncio.ensure_future(batcher.submit(x)) for _ in range(2048)]
        await asyncio.sleep(0.05)
        batcher.start()
        labels = [int((await task).labels[0]) for task in tasks]
        await batcher.stop()
        return labels, sizes

    labels, sizes = asyncio.run(scenario())
    assert sizes == [64] * 32
    assert chi_squared(np.bincount(labels, minlength=2).tolist(), probs) > 1e-7
    # If a draw were shared within a call, each call would be all zeros or all ones.
    per_call = np.array(labels).reshape(32, 64).sum(axis=1)
    assert ((per_call > 10) & (per_call < 54)).all()
