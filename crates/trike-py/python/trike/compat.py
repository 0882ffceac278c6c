"""The functions of tritter-accel 0.2.2, with their names, arguments, shapes, types and values.

Trits, scales, packed bytes, compressed gradients, predicted gradients, hypervectors and similarities have the bits of the original; products
of matrices are sums in another order. `version` is Trike's. What is more than there was: `BitLinear` as a class,
`DeterministicPhaseTrainer`, `quantize_activations_absmax`, hypervectors in f32, and devices without CUDA.

Arrays of weights are f32 (out_features, in_features), of activations f32 (batch, in_features), hypervectors int8 or f32 (dim,).
`device` is `cpu`, a name of `trike.devices()`, or `auto`, the one that `set_device` has set (at first `cpu`); others raise ValueError. On
a device the results are the same, products to rounding; arrays are copied there and back. `vsa_bundle`, `vsa_similarity` and `vsa_random`
compute on the CPU.

Packed weights are four trits per byte, row by row, each row from a new byte: the lowest two bits are the first trit, and the codes are
00 for 0, 01 for +1 and 10 for -1.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from trike import _trike
from trike._chacha import ChaCha8
from trike._phase_trainer import DeterministicTrainer
from trike._trike import DeterministicPhaseTrainer
from trike._trike import devices as _devices

__all__ = [
    "BitLinear",
    "BitLinearLayer",
    "DeterministicPhaseTrainer",
    "DeterministicTrainer",
    "bitlinear_compression_ratio",
    "bitlinear_forward",
    "bitlinear_in_features",
    "bitlinear_out_features",
    "bitlinear_sparsity",
    "compress_gradients_vsa",
    "create_bitlinear",
    "create_trainer",
    "cuda_available",
    "cuda_available_py",
    "decompress_gradients_vsa",
    "get_device",
    "pack_ternary_weights",
    "quantize_activations_absmax",
    "quantize_weights_absmean",
    "set_device",
    "ternary_matmul",
    "trainer_get_phase",
    "trainer_get_stats",
    "trainer_reset",
    "trainer_step",
    "unpack_ternary_weights",
    "version",
    "vsa_bind",
    "vsa_bundle",
    "vsa_random",
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


cuda_available_py = cuda_available


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
    """BitNet b1.58's rule per row (Ma et al., 2402.17764): the scale is `mean|w|`, or 1 for a row of zeros, and trits are `w / scale`
    rounded half away from zero and clamped to -1..1.

    Returns the trits as f32 (out, in) and the scales as f32 (out,). `trike.absmean_trits` rounds to even and bounds scales below.
    """
    weights = _floats(weights, "weights", 2)
    trits, scales = _absmean(weights, weights.shape[1])
    return trits, scales.reshape(-1)


def _absmean(weights: NDArray[np.float32], group: int) -> Tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Trits (rows, cols) and scales (rows, groups)."""
    rows, cols = weights.shape
    if group <= 0 or cols % group:
        raise ValueError(f"weights: expected rows of whole groups of {group}, got shape {weights.shape}")
    groups = weights.reshape(rows, cols // group, group)
    with np.errstate(all="ignore"):
        # One after the other, as the original adds them.
        scales = np.cumsum(np.abs(groups), axis=2, dtype=np.float32)[..., -1] / np.float32(group)
        scales = np.where(scales > 0, scales, np.float32(1))
        normal = groups / scales[..., None]
        trits = np.where(np.abs(normal) >= 0.5, np.sign(normal), 0)
    return trits.reshape(rows, cols).astype(np.float32), scales


def quantize_activations_absmax(activations: NDArray[np.float32]) -> Tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Int8 codes (batch, features) and f32 scales (batch,): with `scale = max(|x|, 1e-5) / 127`, a code is `x / scale` rounded to
    nearest even."""
    codes, scales = _trike.quantize_activations(activations)
    return codes, scales.reshape(-1)


def pack_ternary_weights(
    weights: NDArray[np.float32], scales: NDArray[np.float32]
) -> Tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Packs trits (rows, cols) as uint8 (rows * ceil(cols / 4),). A weight counts by the sign of its whole part. Returns them with a copy
    of the scales (rows,)."""
    weights, scales = _floats(weights, "weights", 2), _floats(scales, "scales", 1)
    rows, cols = weights.shape
    whole = np.trunc(weights)
    codes = np.zeros((rows, -(-cols // 4) * 4), np.uint8)
    codes[:, :cols] = np.where(whole > 0, 1, np.where(whole < 0, 2, 0))
    quads = codes.reshape(rows, -1, 4)
    packed = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6
    return packed.reshape(-1), scales.copy()


def unpack_ternary_weights(
    packed: NDArray[np.uint8], scales: NDArray[np.float32], shape: Tuple[int, int]
) -> NDArray[np.float32]:
    """The weights (rows, cols): trits times the scale of their row."""
    trits = _unpack(packed, shape)
    return trits * _row_scales(scales, shape[0])[:, None]


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
    tensor = _trike.TritTensor(trits, np.ascontiguousarray(_row_scales(scales, weight_shape[0])))
    return tensor.matmul(input) if device == "cpu" else _trike._device_matmul(device, tensor, input)


def _unpack(packed: NDArray[np.uint8], shape: Tuple[int, int]) -> NDArray[np.int8]:
    rows, cols = (int(side) for side in shape)
    packed = _array(packed, "packed", 1)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed: expected an array of uint8, got {packed.dtype}")
    needed = rows * -(-cols // 4)
    if packed.size < needed:
        raise ValueError(f"packed: expected at least {needed} bytes for shape {(rows, cols)}, got {packed.size}")
    codes = packed[:needed, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    codes = codes.reshape(rows, -1)[:, :cols]
    return np.ascontiguousarray((codes == 1).astype(np.int8) - (codes == 2).astype(np.int8))


def _row_scales(scales: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    scales = _floats(scales, "scales", 1)
    if scales.size < rows:
        raise ValueError(f"scales: expected at least {rows}, one per row, got {scales.size}")
    return scales[:rows]


def compress_gradients_vsa(
    gradients: NDArray[np.float32], compression_ratio: float, seed: int
) -> Tuple[NDArray[np.float32], int]:
    """A sparse random projection of a gradient (n,) to `max(256, ceil(n * compression_ratio))` numbers: each element is added to, taken
    from or left out of each number with a chance of 16, 16 and 68 %.

    Returns f32 (m,) and the seed. It takes `n * m` random numbers, as the original does, and much is lost at small ratios;
    `trike.GradientCompressor` is faster, loses less per byte and feeds back what it loses.
    """
    gradients = _floats(gradients, "gradients", 1)
    n = gradients.size
    wanted = np.ceil(np.float32(n) * np.float32(compression_ratio))
    compressed = np.zeros(max(256, int(wanted) if np.isfinite(wanted) else 0), np.float32)
    with np.errstate(divide="ignore"):
        scale = np.float32(1) / np.sqrt(np.float32(n))
    for gradient, (added, taken) in zip(gradients * scale, _projection(seed, n, compressed.size)):
        compressed[added] += gradient
        compressed[taken] -= gradient
    return compressed, seed


def decompress_gradients_vsa(compressed: NDArray[np.float32], original_dim: int, seed: int) -> NDArray[np.float32]:
    """The estimate of a gradient, f32 (original_dim,): the projection backwards."""
    compressed = _floats(compressed, "compressed", 1)
    gradients = np.zeros(original_dim, np.float32)
    if not compressed.size or not original_dim:
        return gradients
    scaled = compressed * (np.float32(1) / np.sqrt(np.float32(original_dim)))
    for at, (added, taken) in enumerate(_projection(seed, original_dim, compressed.size)):
        parts = np.where(added, scaled, np.where(taken, -scaled, np.float32(0)))
        # One after the other, as the original adds them.
        gradients[at] = np.cumsum(parts, dtype=np.float32)[-1]
    return gradients


def _projection(seed: int, rows: int, cols: int):
    """For each element of the gradient, the numbers that it is added to and those that it is taken from."""
    random = ChaCha8(seed)
    at_once = max(1, (1 << 20) // cols)
    for start in range(0, rows, at_once):
        for row in random.floats(min(at_once, rows - start) * cols).reshape(-1, cols):
            added = row < np.float32(0.16)
            yield added, (row < np.float32(0.32)) & ~added


def create_trainer(
    param_shapes: Sequence[Tuple[str, Sequence[int]]],
    warmup_steps: int = 10,
    full_steps: int = 5,
    predict_steps: int = 20,
    correct_every: int = 5,
) -> DeterministicTrainer:
    """A trainer for parameters with these names and shapes: `warmup_steps` measured steps, then cycles of `full_steps` measured and
    `predict_steps` predicted ones, with a correction after every `correct_every` of these."""
    return DeterministicTrainer(param_shapes, warmup_steps, full_steps, predict_steps, correct_every)


def trainer_step(
    trainer: DeterministicTrainer, gradients: Optional[Dict[str, NDArray[np.float32]]] = None, loss: float = 0.0
) -> dict:
    """A step: takes the gradients where it is measured, and gives `predicted_gradients` where it is predicted (else None), with
    `phase` (WARMUP, FULL, PREDICT or CORRECT), `needs_backward`, `total_step`, `cycle`, `speedup` and `mean_prediction_error`."""
    read = None
    if gradients is not None:
        read = {}
        for name, gradient in gradients.items():
            if not isinstance(gradient, np.ndarray) or gradient.dtype != np.float32:
                raise TypeError(f"gradients[{name!r}]: expected a NumPy array of float32")
            # Kept until the line is fitted: the caller may reuse its buffer.
            read[name] = gradient.copy()
    return trainer.step(read, loss)


def trainer_get_phase(trainer: DeterministicTrainer) -> str:
    """The phase of the last step: WARMUP, FULL, PREDICT or CORRECT."""
    return trainer.phase


def trainer_get_stats(trainer: DeterministicTrainer) -> dict:
    """Steps by phase, cycles, speedup, mean prediction error and the last loss."""
    return trainer.stats()


def trainer_reset(trainer: DeterministicTrainer) -> None:
    """Starts over."""
    trainer.reset()


def vsa_bind(a: NDArray, b: NDArray, device: str = "auto") -> NDArray:
    """The difference of two hypervectors modulo 3, as -1, 0 and 1, in the type of `a`: `vsa_unbind(vsa_bind(a, b), b)` is `a`."""
    return _pair(a, b, device, True)


def vsa_unbind(bound: NDArray, key: NDArray, device: str = "auto") -> NDArray:
    """The sum modulo 3, which undoes `vsa_bind`."""
    return _pair(bound, key, device, False)


def vsa_bundle(vectors: Sequence[NDArray], device: str = "auto") -> NDArray:
    """The sign of the sum in each dimension; 0 for a tie."""
    _device(device)
    vectors = [_array(vector, f"vectors[{at}]", 1) for at, vector in enumerate(vectors)]
    if not vectors:
        raise ValueError("vectors: expected at least one, got none")
    for at, vector in enumerate(vectors):
        _expect(vector, f"vectors[{at}]", vectors[0].shape)
    total = sum(_trits(vector, f"vectors[{at}]").astype(np.int64) for at, vector in enumerate(vectors))
    return np.sign(total).astype(vectors[0].dtype)


def vsa_similarity(a: NDArray, b: NDArray, metric: str = "cosine", device: str = "auto") -> float:
    """`cosine`; `dot`, the dot product; or `hamming`, the number of dimensions that differ."""
    _device(device)
    a, b = _array(a, "a", 1), _array(b, "b", 1)
    _expect(b, "b", a.shape)
    x, y = _vector(a), _vector(b)
    metric = metric.lower()
    if metric == "dot":
        return float(_trike.dot(x, y))
    if metric == "hamming":
        return float(_trike.hamming_distance(x, y))
    if metric == "cosine":
        norms = [np.sqrt(np.float32(np.count_nonzero(vector))) for vector in (a, b)]
        product = norms[0] * norms[1]
        return float(np.float32(_trike.dot(x, y)) / product) if product else 0.0
    raise ValueError(f"metric: expected one of cosine, dot, hamming, got {metric!r}")


def vsa_random(dim: int, seed: int, device: str = "auto") -> NDArray[np.int8]:
    """A random hypervector, int8 (dim,), by the xorshift generator of the original; only the lowest 32 bits of the seed count.
    `trike.vsa.Hypervector.random` has better ones."""
    _device(device)
    if dim <= 0:
        raise ValueError(f"dim: expected a number over 0, got {dim}")
    mask, state = 2**32 - 1, seed % 2**32
    trits = np.empty(dim, np.int8)
    for i in range(dim):
        s = (state + i * 2_654_435_769) & mask
        s ^= s << 13 & mask
        s ^= s >> 17
        s ^= s << 5 & mask
        trits[i] = s % 3 - 1
        state = (state + s) & mask
    return trits


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


class BitLinearLayer:
    """The handle of `create_bitlinear`."""

    def __init__(self, weight: NDArray[np.float32], bias: Optional[NDArray[np.float32]], group_size: int) -> None:
        weight = _floats(weight, "weight", 2)
        if group_size < 1 or group_size & (group_size - 1):
            raise ValueError(f"group_size: expected a power of two, got {group_size}")
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else _expect(_floats(bias, "bias", 1), "bias", (self.out_features,)).copy()
        self.trits, self.scales = _absmean(weight, group_size)
        self.weight = self.trits * np.repeat(self.scales, group_size, axis=1)


def create_bitlinear(
    weight: NDArray[np.float32], bias: Optional[NDArray[np.float32]] = None, group_size: int = 64
) -> BitLinearLayer:
    """A layer with ternary weights of `quantize_weights_absmean`, one scale per `group_size` weights of a row. `in_features` is a multiple
    of `group_size`, a power of two."""
    return BitLinearLayer(weight, bias, group_size)


def bitlinear_forward(layer: BitLinearLayer, input: NDArray[np.float32]) -> NDArray[np.float32]:
    """The outputs (batch, out_features); activations are not rounded."""
    input = _floats(input, "input", 2)
    if input.shape[1] != layer.in_features:
        raise ValueError(f"input: expected {layer.in_features} features, got shape {input.shape}")
    output = input @ layer.weight.T
    return output if layer.bias is None else output + layer.bias


def bitlinear_compression_ratio(layer: BitLinearLayer) -> float:
    """Bytes in f32 over those of two bit planes, in words of 32, and f32 scales."""
    packed = layer.out_features * -(-layer.in_features // 32) * 8 + layer.scales.size * 4
    return float(np.float32(layer.out_features * layer.in_features * 4) / np.float32(packed))


def bitlinear_sparsity(layer: BitLinearLayer) -> float:
    """The share of zeros."""
    nonzero = np.float32(np.count_nonzero(layer.trits)) / np.float32(layer.trits.size)
    return float(np.float32(1) - nonzero)


def bitlinear_in_features(layer: BitLinearLayer) -> int:
    """Input features."""
    return layer.in_features


def bitlinear_out_features(layer: BitLinearLayer) -> int:
    """Output features."""
    return layer.out_features


def _floats(value: NDArray, what: str, axes: int) -> NDArray[np.float32]:
    value = _array(value, what, axes)
    if value.dtype != np.float32:
        raise TypeError(f"{what}: expected an array of float32, got {value.dtype}")
    return value


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
