"""A product with packed weights, and a text from a ternary model."""

import time

import numpy as np
from _common import model_path

import trike

rng = np.random.default_rng(1)
tensor = trike.TritTensor(rng.integers(-1, 2, (2048, 2048)).astype(np.int8), np.ones(2048, np.float32), encoding="2bit")
dense = tensor.to_numpy()
x = rng.normal(size=(1, 2048)).astype(np.float32)


def milliseconds(call):
    call()
    times = []
    for _ in range(20):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


print(f"NumPy f32: {milliseconds(lambda: x @ dense.T):.3f} ms, {dense.nbytes:,} bytes")
print(f"Trike f32: {milliseconds(lambda: tensor.matmul(x)):.3f} ms, {tensor.nbytes:,} bytes")
print(f"Trike int8: {milliseconds(lambda: tensor.matmul(x, precision='int8')):.3f} ms")

model = trike.Model(model_path(), device="cpu")
for piece in model.stream("Once upon a time", max_tokens=40):
    print(piece, end="", flush=True)
print()
