"""Gradient codecs, and exchanges between ranks of this process."""

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
