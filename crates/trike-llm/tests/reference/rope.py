"""Writes `rope.json`: the RoPE tables that transformers computes from configurations.

Needs transformers 5 and numpy. The few functions of torch that its formulas call are numpy's here, in float32, so that torch need
not be installed: `python rope.py > rope.json`.
"""

import json
import types

import numpy as np
import transformers
from transformers import modeling_rope_utils as rope


class Array(np.ndarray):
    """An array with the two methods of a tensor that the formulas call."""

    def to(self, device=None, dtype=None):
        return self.astype(dtype or self.dtype)

    def float(self):
        return self.astype(np.float32)


def array(values, dtype=None, device=None):
    return np.array(values, dtype=dtype).view(Array)


rope.torch = types.SimpleNamespace(
    float=np.float32,
    float32=np.float32,
    int64=np.int64,
    arange=lambda *range, dtype=np.int64, device=None: np.arange(*range, dtype=dtype).view(Array),
    tensor=array,
    where=lambda test, a, b: np.where(test, a, b).view(Array),
    clamp=lambda a, low, high: np.clip(a, low, high),
)

CLASSES = {
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "BitNetForCausalLM": transformers.BitNetConfig,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 8.0]
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
CASES = [
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM", {"rope_theta": 5e5}),
    ("BitNetForCausalLM", {}),
    ("LlamaForCausalLM", {"rope_theta": 1e4, "rope_scaling": {"rope_theta": 5e5}}),
    ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}),
    ("Qwen3ForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ("LlamaForCausalLM", {"rope_theta": 2e5, "rope_parameters": {"rope_type": "default"}}),
    ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4}}),
    ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}}),
    ("LlamaForCausalLM", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 512}}),
    ("LlamaForCausalLM", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    ("LlamaForCausalLM", {"original_max_position_embeddings": 256,
                          "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 512}}),
    ("Qwen2ForCausalLM", {"rope_theta": 1e6, "rope_scaling": YARN}),
    ("Qwen2ForCausalLM", {"rope_scaling": YARN | {"beta_fast": 16, "beta_slow": 0, "attention_factor": 1.25}}),
    ("Qwen3ForCausalLM", {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 1e6, "mscale": 0.7}}),
    ("LlamaForCausalLM", {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    ("LlamaForCausalLM", {"max_position_embeddings": 4096, "rope_scaling": YARN | {"factor": None}}),
    ("MistralForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
    ("LlamaForCausalLM", {"rope_scaling": {
        "rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS, "attention_factor": 1.0,
        "original_max_position_embeddings": 2048}}),
    ("LlamaForCausalLM", {"rope_scaling": {
        "rope_type": "longrope", "short_factor": FACTORS, "long_factor": [2 * f for f in FACTORS],
        "original_max_position_embeddings": 2048}}),
]


def table(config):
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        steps = rope.torch.arange(0, config.head_dim, 2).float() / config.head_dim
        return 1.0 / (config.rope_parameters["rope_theta"] ** steps), 1.0
    return rope.ROPE_INIT_FUNCTIONS[kind](config)


cases = []
for architecture, more in CASES:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 2048}
    written = json.dumps(sizes | more)
    frequencies, factor = table(CLASSES[architecture](**json.loads(written)))
    cases.append({
        "config": {"architectures": [architecture]} | json.loads(written),
        "frequencies": [float(np.float32(f)) for f in frequencies],
        "attention_factor": factor,
    })
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
