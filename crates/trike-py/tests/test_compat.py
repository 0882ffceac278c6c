"""`trike.compat` against tritter-accel 0.2.2: beside the package where it is installed, and against what it has computed
(`compat_golden.json`, written by `python test_compat.py` where it is)."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).with_name("compat_golden.json")


def _numbers(seed, shape, scale=1.0):
    """Small fractions, exact in f32, that no version of NumPy makes otherwise."""
    count = int(np.prod(shape))
    values = (np.arange(1, count + 1, dtype=np.int64) * (2 * seed + 7919) * 104_729) % 2003 - 1001
    return (values.astype(np.float32) / np.float32(512) * np.float32(scale)).reshape(shape)


def _trits(seed, shape):
    return np.sign(np.trunc(_numbers(seed, shape))).astype(np.float32)


def _weights(seed, shape):
    weights = _numbers(seed, shape)
    weights[0] = 0
    weights[1, :4] = [0.5, -0.5, 1.5, -2.5]
    return weights


def _steps(module, shapes):
    """What a trainer says and predicts in forty steps."""
    trainer = module.create_trainer(list(shapes.items()), warmup_steps=3, full_steps=4, predict_steps=7, correct_every=3)
    seen = []
    for step in range(40):
        gradients = {name: _numbers(step + len(name), tuple(shape)) + step for name, shape in shapes.items()}
        result = module.trainer_step(trainer, gradients, loss=1.0 / (step + 1))
        predicted = result["predicted_gradients"]
        # The original averages the errors of several parameters in an order that is another one in each run.
        error = result["mean_prediction_error"] if len(shapes) == 1 else 0
        seen.append([
            ["WARMUP", "FULL", "PREDICT", "CORRECT"].index(result["phase"]), result["needs_backward"], result["total_step"],
            result["cycle"], result["speedup"], error,
            *([] if predicted is None else [number for name in shapes for number in predicted[name].ravel().tolist()]),
        ])  # fmt: skip
    stats = module.trainer_get_stats(trainer)
    seen.append([stats[key] for key in sorted(stats) if key != "mean_prediction_error"])
    module.trainer_reset(trainer)
    assert module.trainer_get_phase(trainer) == "WARMUP"
    seen.append([module.trainer_get_stats(trainer)[key] for key in sorted(stats)])
    return seen


def _layer(module, group, bias):
    layer = module.create_bitlinear(_weights(1, (5, 64)), _numbers(9, 5) if bias else None, group)
    shape = module.bitlinear_in_features(layer), module.bitlinear_out_features(layer)
    rest = module.bitlinear_compression_ratio(layer), module.bitlinear_sparsity(layer)
    return [list(shape), list(rest), module.bitlinear_forward(layer, _numbers(2, (3, 64)))]


def _packed(module, cols):
    return module.pack_ternary_weights(_trits(cols, (3, cols)), _numbers(4, 3))


# Each function, with the relative tolerance of what it returns: 0 where the bits agree.
CASES = {
    "quantize": (lambda m: m.quantize_weights_absmean(_weights(3, (6, 50))), 0),
    "quantize wide": (lambda m: m.quantize_weights_absmean(_weights(5, (3, 200))), 0),
    "pack 1": (lambda m: _packed(m, 1), 0),
    "pack 5": (lambda m: _packed(m, 5), 0),
    "pack 64": (lambda m: _packed(m, 64), 0),
    "pack what is no trit": (lambda m: m.pack_ternary_weights(_numbers(8, (2, 9)), np.ones(2, np.float32)), 0),
    "unpack": (lambda m: m.unpack_ternary_weights(*_packed(m, 7), (3, 7)), 0),
    "unpack bytes": (lambda m: m.unpack_ternary_weights(np.arange(0, 256, 17, dtype=np.uint8)[:6], _numbers(1, 3), (3, 6)), 0),
    "matmul": (lambda m: m.ternary_matmul(_numbers(6, (4, 61)), *_packed(m, 61), (3, 61)), 1e-5),
    "compress": (lambda m: m.compress_gradients_vsa(_numbers(2, 700), 0.5, 42), 0),
    "compress little": (lambda m: m.compress_gradients_vsa(_numbers(2, 30), 0.1, 2**63 + 5), 0),
    "compress more": (lambda m: m.compress_gradients_vsa(_numbers(2, 200), 1.5, 0), 0),
    "decompress": (lambda m: m.decompress_gradients_vsa(_numbers(3, 300), 500, 42), 0),
    "trainer": (lambda m: _steps(m, {"w": [2, 3]}), 1e-6),
    "trainer of several": (lambda m: _steps(m, {"w": [2, 3], "vv": [1, 4], "bias": [4, 1]}), 0),
    "layer": (lambda m: _layer(m, 64, True), 1e-5),
    "layer of groups": (lambda m: _layer(m, 16, False), 1e-5),
}


def _plain(value):
    """Nested lists of numbers; floats by their exact value."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64).ravel().tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return float(value)


def _same(got, expected, tolerance):
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected):
            _same(one, other, tolerance)
    elif tolerance:
        assert got == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert got == expected


@pytest.mark.parametrize("name", CASES)
def test_what_the_original_computes(name):
    from trike import compat

    call, tolerance = CASES[name]
    got = call(compat)
    if importlib.util.find_spec("tritter_accel"):
        import tritter_accel

        original = call(tritter_accel)
        _same(_plain(got), _plain(original), tolerance)
        for one, other in zip(*(part if isinstance(part, tuple) else (part,) for part in (got, original))):
            if isinstance(other, np.ndarray):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
    _same(_plain(got), json.loads(GOLDEN.read_text())[name], tolerance)


def test_gradients_come_back_by_the_seed():
    from trike import compat

    g = _numbers(1, 1000)
    compressed, seed = compat.compress_gradients_vsa(g, 0.5, 7)
    assert (compressed.dtype, compressed.shape, seed) == (np.float32, (500,), 7)
    back = compat.decompress_gradients_vsa(compressed, g.size, seed)
    assert 0.4 < back @ g / np.linalg.norm(back) / np.linalg.norm(g) < 0.8
    other = compat.decompress_gradients_vsa(compressed, g.size, seed + 1)
    assert abs(other @ g / np.linalg.norm(other) / np.linalg.norm(g)) < 0.15
    with pytest.raises(TypeError):
        compat.compress_gradients_vsa(g.astype(np.float64), 0.5, 7)


def test_activations_absmax():
    from trike import compat

    x = _numbers(4, (4, 30))
    codes, scales = compat.quantize_activations_absmax(x)
    assert (codes.dtype, codes.shape, scales.dtype, scales.shape) == (np.int8, (4, 30), np.float32, (4,))
    np.testing.assert_allclose(scales, np.abs(x).max(axis=1) / 127, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_hypervectors(dtype):
    """By the definitions of the original, trit by trit."""
    from trike import compat

    a, b, c = (_trits(seed, 1000).astype(dtype) for seed in range(3))
    wrap = {-2: 1, -1: -1, 0: 0, 1: 1, 2: -1}
    bound = compat.vsa_bind(a, b)
    assert bound.dtype == dtype
    assert bound.tolist() == [wrap[int(x) - int(y)] for x, y in zip(a, b)]
    np.testing.assert_array_equal(compat.vsa_unbind(bound, b), a)
    for vectors in ([a, b], [a, b, c]):
        np.testing.assert_array_equal(compat.vsa_bundle(vectors), np.sign(sum(vector.astype(int) for vector in vectors)))
    f = a.astype(np.float64)
    cosine = f @ b / np.sqrt(np.count_nonzero(a) * np.count_nonzero(b))
    assert compat.vsa_similarity(a, b) == pytest.approx(cosine, rel=1e-6)
    assert compat.vsa_similarity(a, np.zeros_like(a)) == 0
    assert compat.vsa_similarity(a, b, metric="dot") == f @ b
    assert compat.vsa_similarity(a, b, metric="hamming") == (a != b).sum()
    with pytest.raises(ValueError, match="metric"):
        compat.vsa_similarity(a, b, metric="l2")
    with pytest.raises(ValueError, match=r"b: expected shape \(1000,\), got \(999,\)"):
        compat.vsa_bind(a, b[1:])
    v = compat.vsa_random(3000, 5)
    assert v.dtype == np.int8 and [(v == trit).sum() > 800 for trit in (-1, 0, 1)] == [True] * 3
    # The first trits by hand: xorshift of 5 and of 5 + s + 2654435769 modulo 2^32.
    s = 5 ^ 5 << 13
    s ^= s >> 17
    s ^= s << 5 & 2**32 - 1
    t = (5 + s + 2_654_435_769) % 2**32
    t ^= t << 13 & 2**32 - 1
    t ^= t >> 17
    t ^= t << 5 & 2**32 - 1
    assert v[:2].tolist() == [s % 3 - 1, t % 3 - 1]


def test_random_numbers_are_those_of_chacha8():
    from trike._chacha import ChaCha8

    random = ChaCha8(0)
    random._key = [0] * 8
    # The first block of the published test vectors for a key of zeros.
    assert random.words(8).astype("<u4").tobytes().hex() == "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
    whole, parts = ChaCha8(9), ChaCha8(9)
    np.testing.assert_array_equal(whole.words(100), np.concatenate([parts.words(7), parts.words(93)]))


def test_devices_and_layers():
    from trike import compat

    assert compat.get_device() == "cpu" and isinstance(compat.cuda_available(), bool) and compat.version()
    compat.set_device("cpu")
    with pytest.raises(ValueError):
        compat.set_device("abacus")
    w, bias, x = _numbers(1, (8, 32)), _numbers(2, 8), _numbers(3, (2, 32))
    layer = compat.BitLinear(w, bias)
    codes, step = compat.quantize_activations_absmax(x)
    mean = np.abs(w).mean()
    expected = (codes * step[:, None]) @ (np.clip(np.rint(w / mean), -1, 1) * mean).T + bias
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)
    for group in (0, 48, 128):
        with pytest.raises(ValueError):
            compat.create_bitlinear(w, group_size=group)


def test_phases():
    from trike import compat

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


if __name__ == "__main__":
    import tritter_accel

    GOLDEN.write_text(json.dumps({name: _plain(call(tritter_accel)) for name, (call, _) in CASES.items()}) + "\n")
