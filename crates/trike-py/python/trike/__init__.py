"""Ternary language models, trit tensors and hypervectors.

Start from `Model`, which loads a model from a path or from the hub and generates text, or from `TritTensor`, a matrix of weights
-1, 0 and +1 with scales. Arrays are NumPy's; tensors of PyTorch on the CPU are accepted through DLPack. Matrices of weights are
(outputs, inputs), activations are (tokens, inputs). Functions release the interpreter's lock while they work.

Modules: `trike.vsa` (hypervectors), `trike.llama` (the interface of llama-cpp-python), `trike.compat` (the functions of
tritter-accel), `trike.torch` (layers; needs PyTorch) and `trike.transformers` (a quantizer; needs transformers).
"""

import os as _os

# A layer of Mesa's Vulkan looks for a display when devices are listed, and says on stderr that there is none. It only matters to
# those who choose a device through it.
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "MESA_VK_DEVICE_SELECT")
if not any(_name in _os.environ for _name in _DISPLAYS):
    _os.environ.setdefault("NODEVICE_SELECT", "1")

from trike import compat, vsa
from trike._jobs import ConvertReport, Inspection, QuantizeReport, TrainReport, convert, inspect, quantize, train
from trike._models import Model
from trike._trike import (
    GradientCompressor,
    GradientExchange,
    ModelError,
    Stream,
    TritTensor,
    __version__,
    absmean_trits,
    cpu_info,
    devices,
    exact_trits,
    quantize_activations,
    quantize_matrix,
    set_threads,
    trits_of,
)

__all__ = [
    "ConvertReport",
    "GradientCompressor",
    "GradientExchange",
    "Inspection",
    "Model",
    "ModelError",
    "QuantizeReport",
    "Stream",
    "TrainReport",
    "TritTensor",
    "__version__",
    "absmean_trits",
    "compat",
    "convert",
    "cpu_info",
    "devices",
    "exact_trits",
    "inspect",
    "quantize",
    "quantize_activations",
    "quantize_matrix",
    "set_threads",
    "train",
    "trits_of",
    "vsa",
]
