"""A quantizer `trike` for transformers, registered when this module is imported.

    from trike.transformers import TrikeConfig
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=TrikeConfig(planes=2))
    model.save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)

Linear layers become `trike.torch.TernaryLinear`, all but the head and those that `modules_to_not_convert` names. What is saved is a
directory of Trike: `trike.Model(out)` and the command `trike` open it, and directories of `trike.quantize` load here if their
matrices are packed as `base3` without rotation, means or int8.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from trike.torch import TernaryLinear

__all__ = ["TrikeConfig", "TrikeQuantizer"]

#: The version of the description of packed tensors, see the handbook's page on formats.
VERSION = 1
_TYPES = {"F16": torch.float16, "F32": torch.float32}


@register_quantization_config("trike")
class TrikeConfig(QuantizationConfigMixin):
    """`planes` is 1 to 6; `group` is 32, 64, 128, 256, `row` or `tensor`; `precision` of the activations is `f32`, `int16` or `int8`.

    `tensors` and `version` are those of the saved file.
    """

    def __init__(
        self,
        planes: int = 2,
        group: Any = 128,
        rule: str = "least_squares",
        precision: str = "f32",
        modules_to_not_convert: Optional[List[str]] = None,
        tensors: Optional[Dict[str, dict]] = None,
        version: int = VERSION,
        **_ignored: Any,
    ) -> None:
        self.quant_method = "trike"
        if not 1 <= planes <= 6:
            raise ValueError(f"planes: expected 1 to 6, got {planes}")
        if version != VERSION:
            raise ValueError(f"quantization_config: expected version {VERSION}, got {version}: make the directory with trike.convert")
        self.planes, self.group, self.rule, self.precision = planes, group, rule, precision
        self.modules_to_not_convert = modules_to_not_convert
        self.tensors, self.version = tensors or {}, version


@register_quantizer("trike")
class TrikeQuantizer(HfQuantizer):
    """Converts dense models after they are loaded, and loads converted ones."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if not self.pre_quantized:
            return model
        tensors = dict(self.quantization_config.tensors)
        for name, linear in [(n, m) for n, m in model.named_modules() if type(m) is nn.Linear]:
            # The base model of a causal one has no prefix, and the other way round.
            names = (f"{name}.weight", f"{model.base_model_prefix}.{name}.weight", f"{name.partition('.')[2]}.weight")
            stored = next((at for at in names if at in tensors), None)
            if stored is not None:
                _replace(model, name, self._empty(stored, tensors.pop(stored), linear))
        others = [name for name, entry in tensors.items() if entry.get("encoding") == "int8"]
        if others:
            raise ValueError(f"{others[0]}: int8 matrices are not supported by transformers: open the model with trike.Model")
        return model

    def _empty(self, name: str, entry: dict, linear: nn.Linear) -> TernaryLinear:
        """The layer of a description, without values."""
        wrong = [key for key in ("rotation", "mean_dtype", "tiles") if entry.get(key) is not None]
        if entry.get("encoding") != "base3" or wrong:
            what = f"encoding {entry.get('encoding')}" if not wrong else wrong[0]
            raise ValueError(f"{name}: expected trits in base3 without rotation, means or tiles, got {what}")
        if entry["shape"] != [linear.out_features, linear.in_features]:
            raise ValueError(f"{name}: expected shape {[linear.out_features, linear.in_features]}, got {entry['shape']}")
        layer = TernaryLinear(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            planes=entry["depth"],
            group=entry["granularity"],
            coupling=entry["coupling"],
            precision=self.quantization_config.precision,
            latent=False,
            device="meta",
        )
        layer.weight.scales = layer.weight.scales.to(_TYPES[entry["scale_dtype"]])
        return layer

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        config = self.quantization_config
        if self.pre_quantized:
            return model
        skip = self.get_modules_to_not_convert(model, config.modules_to_not_convert, None, True)
        for name, linear in list(model.named_modules()):
            skipped = any(name == part or name.startswith(f"{part}.") or f".{part}" in name for part in skip)
            if type(linear) is not nn.Linear or skipped:
                continue
            layer = TernaryLinear.from_linear(
                linear, planes=config.planes, group=config.group, rule=config.rule, precision=config.precision
            )
            config.tensors[f"{name}.weight"] = _entry(layer)
            _replace(model, name, layer.to(linear.weight.device))
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


def _entry(layer: TernaryLinear) -> dict:
    """The description of a layer's matrix."""
    types = {dtype: name for name, dtype in _TYPES.items()}
    return {
        "shape": [layer.out_features, layer.in_features],
        "scale_dtype": types[layer.weight.scales.dtype],
        "encoding": "base3",
        "depth": layer.planes,
        "coupling": layer.coupling,
        "granularity": layer.granularity,
    }


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)
