"""`TritTensor` and the quantizers against NumPy."""

import numpy as np
import pytest

import trike

RNG = np.random.default_rng(1)
ENCODINGS = ["planes", "2bit", "base3", "bitmap", "csr"]


def random(rows=5, cols=67, planes=1):
    trits = RNG.integers(-1, 2, (planes, rows, cols)).astype(np.int8)
    scales = RNG.uniform(0.5, 2, (planes, rows)).astype(np.float32)
    return (trits[0], scales[0]) if planes == 1 else (trits, scales)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("planes", [1, 2, 3])
def test_weights_are_scales_times_trits(encoding, planes):
    trits, scales = random(planes=planes)
    tensor = trike.TritTensor(trits, scales, encoding=encoding)
    assert (tensor.shape, tensor.planes, tensor.encoding) == ((5, 67), planes, encoding)
    assert tensor.granularity == "row" and tensor.group == 67
    stacked = trits.reshape(planes, 5, 67)
    for plane in range(planes):
        np.testing.assert_array_equal(tensor.trits(plane), stacked[plane])
    np.testing.assert_array_equal(tensor.scales, scales)
    expected = np.zeros((5, 67), np.float32)
    for plane, scale in zip(stacked, scales.reshape(planes, 5)):
        expected += plane * scale[:, None]
    np.testing.assert_array_equal(tensor.to_numpy(), expected)
    np.testing.assert_array_equal(np.asarray(tensor), expected)
    assert tensor.zeros == (trits == 0).sum()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_buffers_round_trip(encoding):
    trits, scales = random()
    tensor = trike.TritTensor(trits, scales).to_encoding(encoding)
    again = trike.TritTensor.from_buffers(tensor.shape, [tensor.buffers()], tensor.scales)
    assert again == tensor and again.encoding == encoding


def test_groups_and_means():
    trits = RNG.integers(-1, 2, (3, 80)).astype(np.int8)
    scales = RNG.uniform(0.5, 2, (3, 3)).astype(np.float32)
    means = RNG.normal(size=(3, 3)).astype(np.float32)
    tensor = trike.TritTensor(trits, scales, granularity="group32", means=means)
    spread = lambda values: np.repeat(values, [32, 32, 16], axis=1)  # noqa: E731
    np.testing.assert_allclose(tensor.to_numpy(), spread(means) + trits * spread(scales), rtol=1e-6)
    np.testing.assert_array_equal(tensor.means, means)


def test_edits_change_the_product():
    trits, scales = random(16, 64)
    tensor = trike.TritTensor(trits, scales)
    x = RNG.normal(size=(2, 64)).astype(np.float32)
    tensor.matmul(x)
    trits[3, 5] = 0 if trits[3, 5] else 1
    assert tensor.set(0, 3, 5, int(trits[3, 5])) != trits[3, 5]
    assert tensor.get(0, 3, 5) == trits[3, 5]
    np.testing.assert_allclose(tensor.matmul(x), x @ (trits * scales[:, None]).T, rtol=1e-4, atol=1e-4)
    tensor.edit([(0, 0, 0, -1), (0, 1, 1, 1)])
    assert (tensor.get(0, 0, 0), tensor.get(0, 1, 1)) == (-1, 1)
    assert tensor.select_rows([1, 0]).shape == (2, 64)


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_products(tokens):
    trits, scales = random(33, 130)
    tensor = trike.TritTensor(trits, scales)
    x = RNG.normal(size=(tokens, 130)).astype(np.float32)
    exact = x.astype(np.float64) @ (trits * scales[:, None]).astype(np.float64).T
    np.testing.assert_allclose(tensor.matmul(x), exact, rtol=1e-5, atol=1e-4)
    if tokens:
        codes, step = trike.quantize_activations(x)
        rounded = (codes * step).astype(np.float64) @ (trits * scales[:, None]).astype(np.float64).T
        np.testing.assert_allclose(tensor.matmul(x, precision="int8"), rounded, rtol=1e-3, atol=1e-3)


def test_absmean_is_the_formula():
    w = RNG.normal(size=(8, 40)).astype(np.float32)
    tensor = trike.absmean_trits(w)
    mean = np.abs(w.astype(np.float64)).mean()
    np.testing.assert_array_equal(tensor.trits(), np.clip(np.rint(w / np.float32(mean)), -1, 1))
    np.testing.assert_allclose(tensor.scales, [mean], rtol=1e-6)


def test_quantize_matrix_reports_its_error():
    w = RNG.normal(size=(16, 128)).astype(np.float32)
    errors = []
    for planes in (1, 2, 3):
        tensor, stats = trike.quantize_matrix(w, planes=planes)
        error = np.linalg.norm(w - tensor.to_numpy()) / np.linalg.norm(w)
        assert stats["relative_error"] == pytest.approx(error, rel=1e-4)
        assert set(stats) == {"density", "relative_error", "clipped"}
        errors.append(error)
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    rounded = trike.quantize_matrix(w, seed=1)[0]
    assert rounded == trike.quantize_matrix(w, seed=1)[0] and rounded != trike.quantize_matrix(w, seed=2)[0]


def test_exact_trits():
    trits = RNG.integers(-1, 2, (4, 32)).astype(np.float32)
    tensor = trike.exact_trits(trits * 0.5)
    np.testing.assert_array_equal(tensor.to_numpy(), trits * 0.5)
    assert trike.exact_trits(RNG.normal(size=(4, 32)).astype(np.float32)) is None


def test_balanced_digits():
    digits = trike.trits_of(5)
    assert sum(int(d) * 3**at for at, d in enumerate(digits)) == 5


@pytest.mark.parametrize("codec", ["ternary", "sign", "top_k", "demo", "sparse_loco", "sketch"])
def test_codecs(codec):
    gradient = RNG.normal(size=8192).astype(np.float32)
    compressor = trike.GradientCompressor(codec, [(64, 128)], **({"share": 0.25} if codec not in ("ternary", "sign") else {}))
    message, stats = compressor.compress(gradient)
    decoded = compressor.decompress(message)
    assert decoded.shape == gradient.shape and decoded.dtype == np.float32
    assert stats["bytes"] == len(message) and stats["ratio"] == pytest.approx(4 * 8192 / len(message))
    cosine = decoded @ gradient / np.linalg.norm(decoded) / np.linalg.norm(gradient)
    assert stats["cosine"] == pytest.approx(cosine, abs=1e-4)
    with pytest.raises(ValueError, match=r"gradient: expected shape \(8192,\), got \(3,\)"):
        compressor.compress(gradient[:3])
    with pytest.raises(ValueError):
        compressor.decompress(message[:-1])
