"""Logits of a decoder by numpy, in float64: the reference that shares no code with Trike.

usage: decoder.py MODEL_DIR OUT ID,ID,...   (OUT: raw little-endian f32, tokens x vocabulary)

Reads config.json and model.safetensors, of dense f32 tensors or as `trike convert` writes it with the encodings base3 (one plane,
a scale per tensor) and int8. Written from the papers and the published model
definitions: RMSNorm, rotary embedding on halves with linear, Llama-3 and YaRN scaling, grouped-query
attention with a window, gated MLP with SiLU or squared ReLU, biases, query and key norms, BitNet's
sub-norms and its int8 activations, MiniCPM's factors, LongRoPE within the original context, windows of some layers and
layers without rotary embedding.
"""

import json
import math
import pathlib
import struct
import sys

import numpy as np


TYPES = {"F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1"}


def tensors(path, packed):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = (8 + n + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[first:last], TYPES[entry["dtype"]])
        out[name] = values.astype(np.float64).reshape(entry["shape"])
    for name, what in packed.items():
        scales = out[name + ".scales"]
        rows, cols = what["shape"]
        if what["encoding"] == "int8":
            out[name] = out[name + ".int8"] * np.repeat(scales, what["group"], axis=1)[:, :cols]
        else:
            assert (what["encoding"], what["depth"], what["granularity"]) == ("base3", 1, "tensor"), (name, what)
            digits = out[name + ".trits"][0, :, :, None] // 3 ** np.arange(5) % 3 - 1
            out[name] = scales[0] * digits.reshape(rows, -1)[:, :cols]
    return out


def frequencies(config, d):
    theta = config.get("rope_theta", 10000.0)
    plain = theta ** (-np.arange(0, d, 2) / d)
    scaling = config.get("rope_scaling")
    if not scaling:
        return plain, 1.0
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        assert config["max_position_embeddings"] <= scaling["original_max_position_embeddings"]
        return plain / np.array(scaling["short_factor"]), 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    context = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        out = []
        for f in plain:
            wavelength = 2 * math.pi / f
            if wavelength < context / high:
                out.append(f)
            elif wavelength > context / low:
                out.append(f / factor)
            else:
                smooth = (context / wavelength - low) / (high - low)
                out.append((1 - smooth) * f / factor + smooth * f)
        return np.array(out), 1.0
    assert kind == "yarn", kind

    def dimension(turns):
        return d * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(dimension(32)), 0)
    last = min(math.ceil(dimension(1)), d - 1)
    ramp = np.clip((np.arange(d // 2) - first) / max(last - first, 0.001), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1.0


def main(directory, out, ids):
    directory = pathlib.Path(directory)
    config = json.loads((directory / "config.json").read_text())
    packed = config.get("quantization_config", {}).get("tensors", {})
    w = tensors(directory / "model.safetensors", packed)
    ids = [int(i) for i in ids.split(",")]
    kind = config["architectures"][0]
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    d = config.get("head_dim") or hidden // heads
    eps = config["rms_norm_eps"]
    layers = config["num_hidden_layers"]
    window = config.get("sliding_window")
    rotates = [True] * layers
    if kind == "SmolLM3ForCausalLM":
        interval = config.get("no_rope_layer_interval", 4)
        rotates = config.get("no_rope_layers") or [layer % interval != interval - 1 for layer in range(layers)]
    if kind == "MistralForCausalLM":
        slides = [True] * layers
    else:
        slides = [config.get("use_sliding_window", False)] * layers
        if "layer_types" in config:
            slides = [slide and t == "sliding_attention" for slide, t in zip(slides, config["layer_types"])]
        elif kind == "SmolLM3ForCausalLM":
            slides = [slide and not rotate for slide, rotate in zip(slides, rotates)]
    int8 = kind == "BitNetForCausalLM"
    embedding_factor, depth, divisor = 1.0, 1.0, 1.0
    if kind == "MiniCPMForCausalLM":
        embedding_factor = config["scale_emb"]
        depth = config["scale_depth"] / math.sqrt(config["num_hidden_layers"])
        divisor = hidden / config["dim_model_base"]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name]

    def linear(x, name):
        if int8:
            scale = 127 / np.maximum(np.abs(x).max(-1, keepdims=True), 1e-5)
            x = np.clip(np.round(x * scale), -128, 127) / scale
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    freq, attention_factor = frequencies(config, d)
    n = len(ids)
    angle = np.arange(n)[:, None] * freq
    cos, sin = np.cos(angle) * attention_factor, np.sin(angle) * attention_factor

    def rotate(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    x = w["model.embed_tokens.weight"][ids] * embedding_factor
    for layer in range(layers):
        seen = (j <= i) & ((j > i - window) if window and slides[layer] else True)
        p = f"model.layers.{layer}."
        h = norm(x, p + "input_layernorm.weight")
        q = linear(h, p + "self_attn.q_proj").reshape(n, heads, d)
        k = linear(h, p + "self_attn.k_proj").reshape(n, kv_heads, d)
        v = linear(h, p + "self_attn.v_proj").reshape(n, kv_heads, d).transpose(1, 0, 2)
        if p + "self_attn.q_norm.weight" in w:
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        q, k = q.transpose(1, 0, 2), k.transpose(1, 0, 2)
        if rotates[layer]:
            q, k = rotate(q), rotate(k)
        o = np.empty((n, heads, d))
        for head in range(heads):
            g = head // (heads // kv_heads)
            scores = np.where(seen, q[head] @ k[g].T / math.sqrt(d), -np.inf)
            p_ = np.exp(scores - scores.max(-1, keepdims=True))
            o[:, head] = p_ / p_.sum(-1, keepdims=True) @ v[g]
        o = o.reshape(n, heads * d)
        if p + "self_attn.attn_sub_norm.weight" in w:
            o = norm(o, p + "self_attn.attn_sub_norm.weight")
        x = x + depth * linear(o, p + "self_attn.o_proj")
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = linear(h, p + "mlp.gate_proj"), linear(h, p + "mlp.up_proj")
        act = config.get("hidden_act", "silu")
        h = (np.maximum(gate, 0) ** 2 if act == "relu2" else gate / (1 + np.exp(-gate))) * up
        if p + "mlp.ffn_sub_norm.weight" in w:
            h = norm(h, p + "mlp.ffn_sub_norm.weight")
        x = x + depth * linear(h, p + "mlp.down_proj")
    x = norm(x, "model.norm.weight")
    tied = config["tie_word_embeddings"]
    tied = kind in ("MiniCPMForCausalLM", "SmolLM3ForCausalLM") if tied is None else tied
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    (x / divisor @ w[head].T).astype("<f4").tofile(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
