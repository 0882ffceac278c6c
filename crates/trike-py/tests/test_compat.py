"""`trike.compat` against the formulas of its documentation, in NumPy."""

import numpy as np
import pytest

from trike import compat

RNG = np.random.default_rng(3)


def test_weights_absmean():
    w = RNG.normal(size=(6, 50)).astype(np.float32)
    w[2] = 0
    trits, scales = compat.quantize_weights_absmean(w)
    assert (trits.dtype, trits.shape, scales.dtype, scales.shape) == (np.float32, (6, 50), np.float32, (6,))
    expected = np.maximum(np.abs(w.astype(np.float64)).mean(axis=1), 1e-5)
    np.testing.assert_allclose(scales, expected, rtol=1e-6)
    np.testing.assert_array_equal(trits, np.clip(np.rint(w / expected[:, None]), -1, 1))


def test_activations_absmax():
    x = RNG.normal(size=(4, 30)).astype(np.float32)
    codes, scales = compat.quantize_activations_absmax(x)
    assert (codes.dtype, codes.shape, scales.dtype, scales.shape) == (np.int8, (4, 30), np.float32, (4,))
    np.testing.assert_allclose(scales, np.abs(x).max(axis=1) / 127, rtol=1e-6)
    np.testing.assert_array_equal(codes, np.rint(x * (127 / np.abs(x).max(axis=1, keepdims=True))))


@pytest.mark.parametrize("cols", [1, 3, 4, 5, 64])
def test_packing(cols):
    trits = RNG.integers(-1, 2, (3, cols)).astype(np.float32)
    scales = RNG.uniform(1, 2, 3).astype(np.float32)
    packed, same = compat.pack_ternary_weights(trits, scales)
    assert (packed.dtype, packed.shape) == (np.uint8, (3 * -(-cols // 4),))
    np.testing.assert_array_equal(same, scales)
    for row in range(3):
        for col in range(cols):
            byte = packed[row * -(-cols // 4) + col // 4]
            assert (int(byte) >> (2 * (col % 4)) & 3) - 1 == trits[row, col]
    weights = compat.unpack_ternary_weights(packed, scales, (3, cols))
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, trits * scales[:, None])
    x = RNG.normal(size=(2, cols)).astype(np.float32)
    y = compat.ternary_matmul(x, packed, scales, (3, cols))
    assert (y.dtype, y.shape) == (np.float32, (2, 3))
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights.T.astype(np.float64), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError):
        compat.pack_ternary_weights(trits + 0.5, scales)


def test_gradients():
    g = RNG.normal(size=5000).astype(np.float32)
    compressed, n = compat.compress_gradients_vsa(g, 0.25, 42)
    assert (compressed.dtype, compressed.shape, n) == (np.float32, (1250,), 5000)
    back = compat.decompress_gradients_vsa(compressed, n, 42)
    assert (back.dtype, back.shape) == (np.float32, (5000,))
    cosine = back @ g / np.linalg.norm(back) / np.linalg.norm(g)
    # The estimate is the gradient plus the crosstalk of three others in the mean.
    assert 0.4 < cosine < 0.6
    # Unbiased: the projection on the gradient has its length.
    assert back @ g / (g @ g) == pytest.approx(1.0, abs=0.15)
    np.testing.assert_array_equal(compressed, compat.compress_gradients_vsa(g, 0.25, 42)[0])
    assert (compressed != compat.compress_gradients_vsa(g, 0.25, 43)[0]).any()
    for ratio in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError):
            compat.compress_gradients_vsa(g, ratio, 1)


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_hypervectors(dtype):
    a, b, c = (RNG.integers(-1, 2, 1000).astype(dtype) for _ in range(3))
    bound = compat.vsa_bind(a, b)
    assert bound.dtype == dtype
    np.testing.assert_array_equal(bound, (a + b + 1) % 3 - 1)
    np.testing.assert_array_equal(compat.vsa_unbind(bound, b), a)
    bundle = compat.vsa_bundle([a, b, c])
    counts = np.stack([(np.stack([a, b, c]) == trit).sum(axis=0) for trit in (-1, 0, 1)])
    clear = counts.max(axis=0) > 1
    np.testing.assert_array_equal(bundle[clear], counts.argmax(axis=0)[clear] - 1)
    f = a.astype(np.float64)
    assert compat.vsa_similarity(a, b) == pytest.approx(f @ b / np.linalg.norm(f) / np.linalg.norm(b.astype(np.float64)))
    assert compat.vsa_similarity(a, b, metric="dot") == f @ b
    assert compat.vsa_similarity(a, b, metric="hamming") == pytest.approx((a == b).mean())
    with pytest.raises(ValueError, match="metric"):
        compat.vsa_similarity(a, b, metric="l2")
    with pytest.raises(ValueError, match=r"b: expected shape \(1000,\), got \(999,\)"):
        compat.vsa_bind(a, b[1:])


def test_devices_and_layers():
    assert compat.get_device() == "cpu" and isinstance(compat.cuda_available(), bool) and compat.version()
    compat.set_device("cpu")
    with pytest.raises(ValueError):
        compat.set_device("abacus")
    w, bias = RNG.normal(size=(8, 32)).astype(np.float32), RNG.normal(size=8).astype(np.float32)
    x = RNG.normal(size=(2, 32)).astype(np.float32)
    layer = compat.BitLinear(w, bias)
    codes, step = compat.quantize_activations_absmax(x)
    mean = np.abs(w).mean()
    expected = (codes * step[:, None]) @ (np.clip(np.rint(w / mean), -1, 1) * mean).T + bias
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_phases():
    trainer = compat.DeterministicPhaseTrainer(warm_up=3, full=1, predict=2, correct_every=2)
    seen = []
    for step in range(8):
        seen.append(trainer.begin_step())
        gradient = np.array([1.0, 2.0 + step], np.float32)
        if trainer.is_measured():
            trainer.record_full_gradients([gradient])
        else:
            # A line through the measured ones.
            np.testing.assert_allclose(trainer.get_predicted_gradients()[0], gradient, rtol=1e-3)
        trainer.end_step()
    assert seen[:3] == ["warm_up"] * 3 and "predict" in seen
