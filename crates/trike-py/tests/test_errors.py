"""Bad input raises the right exception, with both shapes, and never ends the process."""

import numpy as np
import pytest

import trike
from trike import compat, vsa

GOOD = trike.TritTensor(np.ones((2, 4), np.int8), np.ones(2, np.float32))
X = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: trike.TritTensor([[1]], np.ones(1, np.float32)), TypeError, "trits: expected a NumPy array, got list"),
        (lambda: trike.TritTensor(np.ones((2, 2)), np.ones(2, np.float32)), TypeError, "expected an array of int8, got float64"),
        (lambda: trike.TritTensor(np.full((1, 1), 2, np.int8), np.ones(1, np.float32)), ValueError, "2"),
        (lambda: trike.TritTensor(np.ones((2, 4), np.int8), np.ones(3, np.float32)), ValueError, r"scales: .*\(2,\), got \(3,\)"),
        (lambda: trike.TritTensor(np.ones((2, 4), np.int8), np.ones((2, 1), np.float32)), ValueError, r"\(2,\), got \(2, 1\)"),
        (lambda: trike.TritTensor(np.ones(4, np.int8), np.ones(1, np.float32)), ValueError, r"\(rows, cols\), got \(4,\)"),
        (lambda: trike.TritTensor(np.ones((0, 4), np.int8), np.ones(0, np.float32)), ValueError, "0 x 4"),
        (lambda: GOOD.matmul(X[:, ::2]), ValueError, "contiguous"),
        (lambda: GOOD.matmul(np.asfortranarray(np.ones((3, 4), np.float32))), ValueError, "row-major"),
        (lambda: GOOD.matmul(np.ones((3, 5), np.float32)), ValueError, r"x: expected shape \(tokens, 4\), got \(3, 5\)"),
        (lambda: GOOD.matmul(X.astype(np.float64)), TypeError, "float32, got float64"),
        (lambda: GOOD.matmul(X.astype(">f4")), TypeError, "float32, got >f4"),
        (lambda: GOOD.matmul(X, precision="int4"), ValueError, "f32, int16, int8"),
        (lambda: GOOD.matmul(np.full((1, 4), np.nan, np.float32), precision="int8"), ValueError, "finite"),
        (lambda: GOOD.trits(1), IndexError, "plane"),
        (lambda: GOOD.get(0, 2, 0), IndexError, "row 2"),
        (lambda: GOOD.set(0, 0, 0, 2), ValueError, "-1, 0 or 1, got 2"),
        (lambda: GOOD.buffers(7), IndexError, "plane 7"),
        (lambda: GOOD.to_encoding("3bit"), ValueError, "planes, 2bit, base3, bitmap, csr"),
        (lambda: trike.TritTensor.from_buffers((2, 4), [{"encoding": "2bit"}], np.ones(2, np.float32)), KeyError, "words"),
        (
            lambda: trike.TritTensor.from_buffers(
                (2, 4), [{"encoding": "base3", "bytes": np.full(2, 255, np.uint8)}], np.ones(2, np.float32)
            ),
            ValueError,
            "255",
        ),
        (lambda: trike.quantize_matrix(X, planes=7), ValueError, "7"),
        (lambda: trike.quantize_matrix(X, rule="mean"), ValueError, "absmean"),
        (lambda: trike.quantize_matrix(np.full((2, 2), np.inf, np.float32)), ValueError, "inf"),
        (lambda: trike.quantize_activations(X, group=0), ValueError, "group"),
        (lambda: trike.GradientCompressor("zip", [(1, 1)]), ValueError, "ternary"),
        (lambda: trike.GradientCompressor("top_k", [(1, 1)], share=2.0), ValueError, "2"),
        (lambda: vsa.Hypervector(np.zeros(3, np.int8), "bipolar"), ValueError, "bipolar"),
        (lambda: vsa.Hypervector(np.zeros(3, np.int8), "z4"), ValueError, "z3, bipolar, ternary"),
        (lambda: vsa.bind(vsa.Hypervector.random(8, 1), vsa.Hypervector.random(9, 1)), ValueError, "8.*9|9.*8"),
        (lambda: vsa.bind(vsa.Hypervector.random(8, 1), vsa.Hypervector.random(8, 1, "ternary")), ValueError, "z3 and ternary"),
        (lambda: vsa.bundle([]), ValueError, "at least one"),
        (lambda: vsa.Hypervector.random(8, 1)[8], IndexError, "8 dimensions"),
        (lambda: vsa.ItemMemory(8).search(vsa.Hypervector.random(8, 1)), ValueError, "empty"),
        (lambda: vsa.ItemMemory.load("/no/such/file"), FileNotFoundError, "/no/such"),
        (lambda: trike.set_threads(10**6), ValueError, "1024"),
        (lambda: trike.Model("/no/such/model"), FileNotFoundError, "/no/such/model"),
        (lambda: trike.Model("no-org/no-such-model-of-any-kind", device="cuda:x"), (FileNotFoundError, ValueError), "no-such-model|cuda:x"),
        (lambda: trike.Model(__file__), trike.ModelError, "test_errors.py"),
        (lambda: trike.inspect("/no/such/model"), FileNotFoundError, "/no/such"),
        (lambda: trike.train("/no/such/config.toml"), FileNotFoundError, "config.toml"),
        (lambda: trike.train({"no_such_setting": 1}), ValueError, "no_such_setting"),
        (lambda: compat.ternary_matmul(X, np.ones(2, np.uint8), np.ones(2, np.float32), (2, 4), device="cuda:9"), ValueError, "cuda:9"),
        # As the original, which ignores what is too much.
        (lambda: compat.unpack_ternary_weights(np.ones(1, np.uint8), np.ones(2, np.float32), (2, 4)), ValueError, "at least 2 bytes .* got 1"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_read_only_arrays_are_read():
    x = X.copy()
    x.setflags(write=False)
    np.testing.assert_array_equal(GOOD.matmul(x), np.full((3, 2), 4, np.float32))


def test_bad_options_of_a_model(tiny):
    for options in ({"temperature": -1.0}, {"top_p": 2.0}, {"kv": "f8"}, {"json_schema": {}, "regex": "a"}):
        with pytest.raises(ValueError):
            tiny.generate("Once", max_tokens=1, **options)
    with pytest.raises(TypeError):
        tiny.generate("Once", max_token=1)
    with pytest.raises(TypeError):
        tiny.generate(None)
    with pytest.raises(ValueError, match="expected numbers below"):
        tiny.generate([10**9], max_tokens=1)
    with pytest.raises(ValueError):
        tiny.generate([], max_tokens=1)
    with pytest.raises(trike.ModelError, match="chat template"):
        tiny.chat("Hello")
    with pytest.raises(ValueError):
        tiny.embed("a", pooling="max")
    with pytest.raises(ValueError):
        tiny.perplexity("", progress=None)
    with pytest.raises(OverflowError):
        tiny.logits([-1])


def test_a_callback_that_raises_ends_the_call(tiny):
    def raising(_piece):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        tiny.generate("Once upon a time", on_text=raising)
    assert tiny.generate("Once upon a time", max_tokens=2)["finish"] == "max_tokens"


def test_progress_that_raises_ends_the_job(dense_path, tmp_path):
    def raising(_step, _done, _total):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        trike.quantize(dense_path, tmp_path / "out", planes=1, method="absmean", tune=False, progress=raising)
    with pytest.raises(TypeError, match="progress"):
        trike.inspect(dense_path, progress=3)
