"""Gradient codecs, and exchanges between ranks of this process."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import trike

RNG = np.random.default_rng(5)
CODECS = {"ternary": {}, "sign": {}, "top_k": {"share": 0.2}, "demo": {"share": 0.2}, "sparse_loco": {"share": 0.2}, "sketch": {"share": 0.5}}


@pytest.mark.parametrize("codec", [*CODECS, "low_rank"])
def test_an_exchange_approximates_the_mean(codec):
    shapes = [(64, 32), (1, 32)]
    gradients = RNG.normal(size=(3, 64 * 32 + 32)).astype(np.float32) + RNG.normal(size=64 * 32 + 32).astype(np.float32)
    exchange = trike.GradientExchange(codec, shapes, 3, rank=8, **CODECS.get(codec, {}))
    assert (exchange.codec, exchange.ranks) == (codec, 3)
    mean = exchange.exchange(gradients)
    exact = gradients.mean(axis=0)
    assert mean.dtype == np.float32 and mean.shape == exact.shape
    cosine = mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact)
    assert cosine > 0.3 and 0 < exchange.sent_bytes < 3 * gradients[0].nbytes
    with pytest.raises(ValueError, match=r"gradients: expected shape \(3, 2080\), got \(2, 2080\)"):
        exchange.exchange(gradients[:2])
    gradients[1, 7] = np.nan
    with pytest.raises(ValueError, match="rank 1"):
        exchange.exchange(gradients)


def test_low_rank_is_exact_for_low_ranks():
    matrix = np.outer(RNG.normal(size=16), RNG.normal(size=8)).astype(np.float32)
    exchange = trike.GradientExchange("low_rank", [(16, 8)], 2, rank=1)
    mean = exchange.exchange(np.stack([matrix.reshape(-1), 3 * matrix.reshape(-1)]))
    np.testing.assert_allclose(mean.reshape(16, 8), 2 * matrix, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="GradientExchange"):
        trike.GradientCompressor("low_rank", [(16, 8)])
    with pytest.raises(ValueError, match="ranks"):
        trike.GradientExchange("sign", [(16, 8)], 0)
    with pytest.raises(ValueError, match="low_rank"):
        trike.GradientExchange("nothing", [(16, 8)], 1)


@pytest.mark.parametrize("kind", ["compress", "exchange"])
def test_an_array_is_copied_before_other_threads_may_write(kind):
    """A result is that of the array at one moment, whatever another thread writes into it meanwhile."""
    shape, shapes = ((1 << 21,), [(1 << 21, 1)]) if kind == "compress" else ((2, 1 << 20), [(1 << 20, 1)])
    states = [RNG.normal(size=shape).astype(np.float32) for _ in range(2)]

    def result(array):
        if kind == "compress":
            return trike.GradientCompressor("ternary", shapes).compress(array)[0]
        return trike.GradientExchange("ternary", shapes, 2).exchange(array).tobytes()

    want = [result(state) for state in states]
    assert want[0] != want[1]
    for _ in range(4):
        array = states[0].copy()
        bytes_of = lambda each: memoryview(each.reshape(-1)).cast("B")  # noqa: E731
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(result, array)
            at = 0
            while not done.done():
                at = 1 - at
                # Unlike NumPy, a view copies with the interpreter's lock, so that the array is never between two states.
                bytes_of(array)[:] = bytes_of(states[at])
        assert done.result() in want
