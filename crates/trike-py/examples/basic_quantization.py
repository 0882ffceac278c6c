"""Weights become trits: one to four planes, and what they cost."""

import numpy as np

import trike

weights = np.random.default_rng(1).normal(size=(256, 1024)).astype(np.float32)
for planes in (1, 2, 3, 4):
    tensor, stats = trike.quantize_matrix(weights, planes=planes, encoding="base3")
    print(f"{planes} planes: {tensor.bits_per_weight:.2f} bits per weight, relative error {stats['relative_error']:.3f}")

one = trike.absmean_trits(weights)
print(one, "zeros:", f"{one.zeros / weights.size:.0%}")
assert np.array_equal(trike.exact_trits(one.to_numpy()).trits(), one.trits())
