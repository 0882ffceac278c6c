"""Ternary layers for PyTorch.

`TernaryLinear` runs on Trike's kernels on the CPU; elsewhere it multiplies by the weights as floats. With latent weights it trains:
each forward pass makes them ternary, and gradients pass straight through (Bengio et al., 1308.3432). `BitLinear` is the layer of
BitNet b1.58 (Ma et al., 2402.17764): one scale for all weights and int8 activations per token.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn

from trike import _trike

__all__ = ["BitLinear", "PackedTrits", "TernaryLinear", "convert"]


class _Product(torch.autograd.Function):
    """`x @ weight.T` by the kernels, with the gradients of the product with the ternary weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, latent: Optional[Tensor], layer: "TernaryLinear") -> Tensor:
        ternary = layer.tensor
        rows = x.detach().reshape(-1, x.shape[-1]).to(torch.float32).contiguous()
        if x.device.type == "cpu":
            y = torch.from_numpy(ternary.matmul(rows.numpy(), precision=layer.precision))
        else:
            y = rows @ torch.from_numpy(ternary.to_numpy()).to(x.device).T
        ctx.save_for_backward(rows if latent is not None else None)
        ctx.ternary, ctx.shape, ctx.dtype = ternary, x.shape, x.dtype
        return y.reshape(*x.shape[:-1], layer.out_features).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (rows,) = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1]).to(torch.float32)
        of_x = of_latent = None
        if ctx.needs_input_grad[0]:
            weight = torch.from_numpy(ctx.ternary.to_numpy()).to(grad.device)
            of_x = (flat @ weight).reshape(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            of_latent = flat.T @ rows
        return of_x, of_latent, None


class PackedTrits(nn.Module):
    """Trits without a parameter, named as in Trike's directories: the buffers `trits`, uint8 (planes, out_features,
    ceil(in_features / 5)) with five trits per byte, and `scales`, f16 or f32, with one set for all planes, or one per plane."""

    def __init__(self, trits: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("trits", trits)
        self.register_buffer("scales", scales)


class TernaryLinear(nn.Module):
    """A linear layer with ternary weights: maps (..., in_features) to (..., out_features).

    With `latent=True` it has the parameter `weight`, f32 (out_features, in_features), from which each forward pass makes trits; without,
    as `freeze` makes it, `weight` is a `PackedTrits`. `planes` is 1 to 6, `group` the number of weights that share a scale (32, 64, 128,
    256), `row` or `tensor`; `precision` of the activations is `f32` (exact), `int16` or `int8`; `coupling` of more than one plane is
    `tied` (one set of scales) or `free`.
    """

    _scale_type = torch.float16

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        planes: int = 1,
        group: Any = 128,
        rule: str = "least_squares",
        precision: str = "f32",
        coupling: Optional[str] = None,
        latent: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.planes, self.rule, self.precision = planes, rule, precision
        self.coupling = coupling or ("tied" if planes > 1 else "free")
        self.granularity = f"group{group}" if isinstance(group, int) else group
        self.bias = nn.Parameter(torch.zeros(out_features, device=device)) if bias else None
        self._made: Any = None
        if latent:
            self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device))
            nn.init.kaiming_uniform_(self.weight, a=5**0.5)
            return
        trits = torch.zeros(planes, out_features, -(-in_features // 5), dtype=torch.uint8, device=device)
        sets = planes if self.coupling == "free" else 1
        scales = torch.zeros(sets, *self._scale_sides(), dtype=self._scale_type, device=device)
        self.weight = PackedTrits(trits, scales)

    def _scale_sides(self) -> tuple:
        if self.granularity == "tensor":
            return ()
        if self.granularity == "row":
            return (self.out_features,)
        return (self.out_features, -(-self.in_features // int(self.granularity[5:])))

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, latent: bool = False, **options: Any) -> "TernaryLinear":
        """The ternary form of a dense layer; with `latent`, one that trains."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, latent=True, **options)
        with torch.no_grad():
            layer.weight.copy_(linear.weight.detach().to(torch.float32).cpu())
            if linear.bias is not None:
                layer.bias.copy_(linear.bias.detach())
        return layer if latent else layer.freeze()

    @property
    def is_latent(self) -> bool:
        """Whether the layer has latent weights, and trains."""
        return isinstance(self.weight, nn.Parameter)

    @property
    def tensor(self) -> _trike.TritTensor:
        """The weights. They are made again when the parameter or the buffers have changed."""
        source = self.weight if self.is_latent else self.weight.trits
        key = (source._version, source.data_ptr())
        if self._made is None or self._made[0] != key:
            self._made = (key, self._make())
        return self._made[1]

    def _make(self) -> _trike.TritTensor:
        if self.is_latent:
            return self._ternarize(np.ascontiguousarray(self.weight.detach().to(torch.float32).cpu().numpy()))
        scales = self.weight.scales.to(torch.float32).cpu().numpy()
        # Without an axis of one set, as the array of a tensor's scales.
        scales = scales.reshape(-1) if self.granularity == "tensor" else scales[0] if len(scales) == 1 else scales
        return _trike.TritTensor.from_buffers(
            (self.out_features, self.in_features),
            [{"encoding": "base3", "bytes": plane.reshape(-1)} for plane in self.weight.trits.cpu().numpy()],
            scales,
            granularity=self.granularity,
            coupling=self.coupling,
        )

    def _ternarize(self, weight: np.ndarray) -> _trike.TritTensor:
        return _trike.quantize_matrix(
            weight, planes=self.planes, coupling=self.coupling, granularity=self.granularity, rule=self.rule, encoding="base3"
        )[0]

    def freeze(self) -> "TernaryLinear":
        """Replaces the latent weights by their trits, in place; returns the layer."""
        if not self.is_latent:
            return self
        tensor = self.tensor.to_encoding("base3")
        trits = np.stack([tensor.buffers(plane)["bytes"].reshape(self.out_features, -1) for plane in range(self.planes)])
        scales = torch.from_numpy(tensor.scales).to(self._scale_type).reshape(-1, *self._scale_sides())
        del self.weight
        self.weight = PackedTrits(torch.from_numpy(trits), scales)
        self._made = None
        return self

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, in the type of `x`."""
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x: expected shape (..., {self.in_features}), got {tuple(x.shape)}")
        y = _Product.apply(x, self.weight if self.is_latent else None, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"planes={self.planes}, granularity={self.granularity}, latent={self.is_latent}"
        )


class BitLinear(TernaryLinear):
    """The linear layer of BitNet b1.58, with latent weights: absmean with one scale for all weights, int8 activations per token.

    The gradient of the activations' rounding passes straight through, as that of the weights.
    """

    _scale_type = torch.float32

    def __init__(self, in_features: int, out_features: int, bias: bool = False, *, latent: bool = True, device: Any = None) -> None:
        super().__init__(
            in_features, out_features, bias, group="tensor", precision="int8", rule="absmean", latent=latent, device=device
        )

    def _ternarize(self, weight: np.ndarray) -> _trike.TritTensor:
        return _trike.absmean_trits(weight)


def convert(model: nn.Module, *, skip: tuple = ("lm_head",), latent: bool = False, **options: Any) -> nn.Module:
    """Replaces every `nn.Linear` of a model by a `TernaryLinear`, except those whose name contains one of `skip`; returns the model."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not any(part in name for part in skip):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, TernaryLinear.from_linear(module, latent=latent, **options))
    return model
