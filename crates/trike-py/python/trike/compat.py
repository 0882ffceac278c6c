"""The functions of tritter-accel, with their names, arguments, shapes and types.

Arrays of weights are f32 (out_features, in_features), of activations f32 (batch, in_features), hypervectors int8 or f32 (dim,).
`device` is `cpu`, a name of `trike.devices()`, or `auto`, the one that `set_device` has set (at first `cpu`); others raise ValueError. On
a device the results are the same, products to rounding; arrays are copied there and back. `vsa_similarity` computes on the CPU.

Packed weights are four trits per byte, row by row, each row from a new byte: the lowest two bits are the first trit, and the code
is the trit plus one (-1 is 0, 0 is 1, +1 is 2). Unused places have the code of 0.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from trike import _trike
from trike._trike import DeterministicPhaseTrainer
from trike._trike import devices as _devices

__all__ = [
    "BitLinear",
    "DeterministicPhaseTrainer",
    "compress_gradients_vsa",
    "cuda_available",
    "decompress_gradients_vsa",
    "get_device",
    "pack_ternary_weights",
    "quantize_activations_absmax",
    "quantize_weights_absmean",
    "set_device",
    "ternary_matmul",
    "unpack_ternary_weights",
    "version",
    "vsa_bind",
    "vsa_bundle",
    "vsa_similarity",
    "vsa_unbind",
]

_default_device = "cpu"


def version() -> str:
    """The version of Trike."""
    return _trike.__version__


def cuda_available() -> bool:
    """Whether a CUDA device is found."""
    return any(device["name"].startswith("cuda") for device in _devices())


def get_device() -> str:
    """The device of calls with `device="auto"`."""
    return _default_device


def set_device(device: str) -> None:
    """Sets the device of calls with `device="auto"`. ValueError for a device that is not there."""
    global _default_device
    _default_device = _device(device)


def _device(device: str) -> str:
    if device == "auto":
        return _default_device
    names = ["cpu", *(found["name"] for found in _devices())]
    if device not in names:
        raise ValueError(f"device: expected auto or one of {', '.join(names)}, got {device!r}")
    return device


def quantize_weights_absmean(weights: NDArray[np.float32]) -> Tuple[NDArray[np.float32], NDArray[np.float32]]:
    """BitNet b1.58's rule per row (Ma et al., 2402.17764): with `scale = max(mean|w|, 1e-5)`, trits are `w / scale` rounded to
    nearest even and clamped to -1..1.

    Returns the trits as f32 (out, in) and the scales as f32 (out,).
    """
    tensor = _trike.absmean_trits(weights, granularity="row")
    return tensor.trits().astype(np.float32), tensor.scales


def quantize_activations_absmax(activations: NDArray[np.float32]) -> Tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Int8 codes (batch, features) and f32 scales (batch,): with `scale = max(|x|, 1e-5) / 127`, a code is `x / scale` rounded to
    nearest even."""
    codes, scales = _trike.quantize_activations(activations)
    return codes, scales.reshape(-1)


def pack_ternary_weights(
    weights: NDArray[np.float32], scales: NDArray[np.float32]
) -> Tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Packs trits (rows, cols) as uint8 (rows * ceil(cols / 4),). Returns them with the scales (rows,)."""
    trits = _trits(_array(weights, "weights", 2), "weights")
    scales = _expect(_array(scales, "scales", 1), "scales", (trits.shape[0],))
    rows, cols = trits.shape
    codes = np.ones((rows, -(-cols // 4) * 4), np.uint8)
    codes[:, :cols] = trits + 1
    quads = codes.reshape(rows, -1, 4)
    packed = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6
    return packed.reshape(-1), scales.astype(np.float32)


def unpack_ternary_weights(
    packed: NDArray[np.uint8], scales: NDArray[np.float32], shape: Tuple[int, int]
) -> NDArray[np.float32]:
    """The weights (rows, cols): trits times the scale of their row."""
    trits = _unpack(packed, shape)
    scales = _expect(_array(scales, "scales", 1), "scales", (shape[0],))
    return trits * scales.astype(np.float32)[:, None]


def ternary_matmul(
    input: NDArray[np.float32],
    packed_weights: NDArray[np.uint8],
    scales: NDArray[np.float32],
    weight_shape: Tuple[int, int],
    device: str = "auto",
) -> NDArray[np.float32]:
    """`input @ weights.T`: f32 (batch, out_features)."""
    device = _device(device)
    trits = _unpack(packed_weights, weight_shape)
    scales = _expect(_array(scales, "scales", 1), "scales", (weight_shape[0],))
    tensor = _trike.TritTensor(trits, np.ascontiguousarray(scales, np.float32))
    return tensor.matmul(input) if device == "cpu" else _trike._device_matmul(device, tensor, input)


def _unpack(packed: NDArray[np.uint8], shape: Tuple[int, int]) -> NDArray[np.int8]:
    rows, cols = (int(side) for side in shape)
    packed = _array(packed, "packed", 1)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed: expected an array of uint8, got {packed.dtype}")
    packed = _expect(packed, "packed", (rows * -(-cols // 4),))
    codes = packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    codes = codes.reshape(rows, -1)[:, :cols]
    if (codes == 3).any():
        raise ValueError("packed: expected codes 0, 1 and 2, got 3")
    return np.ascontiguousarray(codes.astype(np.int8) - 1)


def compress_gradients_vsa(
    gradients: NDArray[np.float32], compression_ratio: float, seed: int
) -> Tuple[NDArray[np.float32], int]:
    """Bundles a gradient (n,) into a hypervector of `max(1, round(n * compression_ratio))` numbers, by a count sketch (Charikar et
    al., 2002): element `i` is added to place `h(i)` with sign `s(i)`, both hashes of `i` and the seed.

    Returns f32 (m,) and n. Much is lost at small ratios: the cosine to the gradient is about the square root of the ratio for a
    gradient without structure. `trike.GradientCompressor` loses less per byte and feeds back what it loses.
    """
    gradients = _array(gradients, "gradients", 1)
    if gradients.dtype != np.float32:
        raise TypeError(f"gradients: expected an array of float32, got {gradients.dtype}")
    if not 0.0 < compression_ratio <= 1.0:
        raise ValueError(f"compression_ratio: expected a number over 0 and up to 1, got {compression_ratio}")
    n = gradients.shape[0]
    if n == 0:
        raise ValueError("gradients: expected at least one element, got none")
    m = max(1, round(n * compression_ratio))
    place, sign = _hashes(n, m, seed)
    return np.bincount(place, weights=gradients * sign, minlength=m).astype(np.float32), n


def decompress_gradients_vsa(compressed: NDArray[np.float32], original_dim: int, seed: int) -> NDArray[np.float32]:
    """The estimate of a gradient, f32 (original_dim,): each element is its place's sum times its sign."""
    compressed = _array(compressed, "compressed", 1)
    if not 0 < compressed.shape[0] <= original_dim:
        raise ValueError(f"compressed: expected 1 to original_dim={original_dim} numbers, got {compressed.shape[0]}")
    place, sign = _hashes(original_dim, compressed.shape[0], seed)
    return (compressed[place] * sign).astype(np.float32)


def _hashes(n: int, m: int, seed: int) -> Tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Places below m and signs, from SplitMix64 (Steele et al., 2014) of the index and the seed."""
    with np.errstate(over="ignore"):
        z = np.arange(n, dtype=np.uint64) + np.uint64(seed % 2**64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    sign = np.where(z & np.uint64(1), np.float32(1), np.float32(-1))
    return ((z >> np.uint64(1)) % np.uint64(m)).astype(np.int64), sign


def vsa_bind(a: NDArray, b: NDArray, device: str = "auto") -> NDArray:
    """The sum of two hypervectors modulo 3, as -1, 0 and 1. The result has the type of `a`."""
    return _pair(a, b, device, False)


def vsa_unbind(bound: NDArray, key: NDArray, device: str = "auto") -> NDArray:
    """The difference modulo 3: `vsa_unbind(vsa_bind(a, key), key)` is `a`."""
    return _pair(bound, key, device, True)


def vsa_bundle(vectors: Sequence[NDArray], device: str = "auto") -> NDArray:
    """The most frequent trit in each dimension; ties are broken so that no value is favoured."""
    device = _device(device)
    vectors = [_array(vector, f"vectors[{at}]", 1) for at, vector in enumerate(vectors)]
    if not vectors:
        raise ValueError("vectors: expected at least one, got none")
    for at, vector in enumerate(vectors):
        _expect(vector, f"vectors[{at}]", vectors[0].shape)
    packed = [_vector(v) for v in vectors]
    total = _trike.bundle(packed) if device == "cpu" else _trike._device_bundle(device, packed)
    return total.to_numpy().astype(vectors[0].dtype)


def vsa_similarity(a: NDArray, b: NDArray, metric: str = "cosine", device: str = "auto") -> float:
    """`cosine`; `dot`, the dot product; or `hamming`, the fraction of dimensions that are equal."""
    _device(device)
    a, b = _array(a, "a", 1), _array(b, "b", 1)
    _expect(b, "b", a.shape)
    x, y = _vector(a), _vector(b)
    if metric == "cosine":
        return _trike.cosine_similarity(x, y)
    if metric == "dot":
        return float(_trike.dot(x, y))
    if metric == "hamming":
        return 1.0 - _trike.hamming_distance(x, y) / x.dim
    raise ValueError(f"metric: expected one of cosine, dot, hamming, got {metric!r}")


def _pair(a: NDArray, b: NDArray, device: str, unbind: bool) -> NDArray:
    device = _device(device)
    a, b = _array(a, "a", 1), _array(b, "b", 1)
    _expect(b, "b", a.shape)
    x, y = _vector(a), _vector(b)
    if device == "cpu":
        result = _trike.unbind(x, y) if unbind else _trike.bind(x, y)
    else:
        result = _trike._device_bind(device, x, y, unbind)
    return result.to_numpy().astype(a.dtype)


def _vector(values: NDArray) -> _trike.Hypervector:
    return _trike.Hypervector(_trits(values, "vector"))


class BitLinear:
    """BitNet b1.58's linear layer on arrays: ternary weights with one scale for all (absmean), int8 activations per token.

    `weight` is f32 (out_features, in_features), `bias` f32 (out_features,) or None. A call maps f32 (batch, in_features) to f32
    (batch, out_features). `trike.torch.BitLinear` is the layer that trains.
    """

    def __init__(self, weight: NDArray[np.float32], bias: Optional[NDArray[np.float32]] = None) -> None:
        self.weight = _trike.absmean_trits(weight)
        self.out_features, self.in_features = self.weight.shape
        self.bias = None if bias is None else _expect(_array(bias, "bias", 1), "bias", (self.out_features,))

    def forward(self, input: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs (batch, out_features)."""
        output = self.weight.matmul(input, precision="int8")
        return output if self.bias is None else output + self.bias

    __call__ = forward


def _array(value: NDArray, what: str, axes: int) -> NDArray:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{what}: expected a NumPy array, got {type(value).__name__}")
    if value.ndim != axes:
        raise ValueError(f"{what}: expected {axes} axes, got shape {value.shape}")
    return value


def _expect(value: NDArray, what: str, shape: Tuple[int, ...]) -> NDArray:
    if value.shape != tuple(shape):
        raise ValueError(f"{what}: expected shape {tuple(shape)}, got {value.shape}")
    return value


def _trits(values: NDArray, what: str) -> NDArray[np.int8]:
    if values.dtype.kind not in "fiu":
        raise TypeError(f"{what}: expected an array of numbers, got {values.dtype}")
    if not np.isin(values, (-1, 0, 1)).all():
        raise ValueError(f"{what}: expected the values -1, 0 and 1")
    return np.ascontiguousarray(values, np.int8)
