"""A quantizer `trike` for transformers, registered when this module is imported.

    from trike.transformers import TrikeConfig
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=TrikeConfig(planes=2))
    model.save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)

Linear layers become `trike.torch.TernaryLinear`, all but the head and those that `modules_to_not_convert` names.
"""

from __future__ import annotations

from typing import Any, List, Optional

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from trike.torch import TernaryLinear

__all__ = ["TrikeConfig", "TrikeQuantizer"]


@register_quantization_config("trike")
class TrikeConfig(QuantizationConfigMixin):
    """`planes` is 1 to 6; `group` is 32, 64, 128, 256, `row` or `tensor`; `precision` of the activations is `f32`, `int16` or `int8`."""

    def __init__(
        self,
        planes: int = 2,
        group: Any = 128,
        rule: str = "least_squares",
        precision: str = "f32",
        modules_to_not_convert: Optional[List[str]] = None,
        **_ignored: Any,
    ) -> None:
        self.quant_method = "trike"
        if not 1 <= planes <= 6:
            raise ValueError(f"planes: expected 1 to 6, got {planes}")
        self.planes, self.group, self.rule, self.precision = planes, group, rule, precision
        self.modules_to_not_convert = modules_to_not_convert


@register_quantizer("trike")
class TrikeQuantizer(HfQuantizer):
    """Converts dense models after they are loaded, and loads converted ones."""

    requires_calibration = False

    def _linears(self, model: nn.Module) -> List[tuple]:
        skip = self.get_modules_to_not_convert(model, self.quantization_config.modules_to_not_convert, None, True)
        return [
            (name, module)
            for name, module in model.named_modules()
            if type(module) is nn.Linear and not any(name == part or name.startswith(f"{part}.") or f".{part}" in name for part in skip)
        ]

    def _options(self) -> dict:
        config = self.quantization_config
        return {"planes": config.planes, "group": config.group, "rule": config.rule, "precision": config.precision}

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if self.pre_quantized:
            for name, linear in self._linears(model):
                layer = TernaryLinear(
                    linear.in_features, linear.out_features, linear.bias is not None, latent=False, device="meta", **self._options()
                )
                _replace(model, name, layer)
        return model

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if not self.pre_quantized:
            for name, linear in self._linears(model):
                _replace(model, name, TernaryLinear.from_linear(linear, **self._options()).to(linear.weight.device))
        return model

    def is_serializable(self, *_args: Any, **_kwargs: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    def _dequantize(self, model: nn.Module, dtype: Optional[torch.dtype] = None) -> nn.Module:
        for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, TernaryLinear)]:
            dense = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
            with torch.no_grad():
                dense.weight.copy_(torch.from_numpy(layer.tensor.to_numpy()))
                if layer.bias is not None:
                    dense.bias.copy_(layer.bias)
            _replace(model, name, dense.to(dtype or torch.float32))
        return model


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)
