"""Gradients in few bits, with error feedback: what a message leaves out is in a later one."""

import numpy as np

import trike
from trike import compat

rng = np.random.default_rng(1)
gradient = rng.standard_t(3, size=65_536).astype(np.float32)
for codec, options in [("ternary", {}), ("sign", {}), ("top_k", {"share": 0.02, "momentum": 0.0}), ("sketch", {"share": 0.1})]:
    compressor = trike.GradientCompressor(codec, [(256, 256)], **options)
    total = np.zeros_like(gradient)
    for _ in range(20):
        message, stats = compressor.compress(gradient)
        total += compressor.decompress(message)
    cosine = total @ gradient / np.linalg.norm(total) / np.linalg.norm(gradient)
    print(f"{codec}: {stats['ratio']:.1f} times smaller, cosine {stats['cosine']:.2f} of one message, {cosine:.2f} of the sum of 20")

part = gradient[:4096]
compressed, seed = compat.compress_gradients_vsa(part, 0.1, seed=42)
restored = compat.decompress_gradients_vsa(compressed, part.size, seed)
print(f"tritter-accel's function: {part.size / compressed.size:.1f} times fewer numbers, cosine "
      f"{restored @ part / np.linalg.norm(restored) / np.linalg.norm(part):.2f}")
