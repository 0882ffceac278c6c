"""Rounds the linear layers of a Llama by the method of another tool, and writes it back as floats:

    python quantizers.py MODEL TOKENIZER TEXT OUT METHOD BITS GROUP

MODEL is a HuggingFace directory of floats, as the example `outliers` of trike-calibrate writes one with a strength of 1; TOKENIZER a llama2.c tokenizer.bin and TEXT stories between <|endoftext|>. METHOD is rtn, hqq,
gptq or awq (with 128 stories); BITS per weight, with a scale and a zero for GROUP weights of a row. Needs torch, transformers, hqq and
llmcompressor from PyPI. Prints the bytes of the weights, with 16 bits for a scale and BITS for a zero (HQQ: 16); `trike eval OUT --base MODEL --text FILE --tokenizer TOKENIZER --activations f32` measures the result.
"""

import json
import os
import shutil
import struct
import sys
import warnings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

THREADS, SEQUENCES, CONTEXT = 1, 512, 512


def pieces(path):
    """The tokens of a llama2.c tokenizer with their scores."""
    with open(path, "rb") as f:
        data = f.read()
    at, out = 4, []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        out.append((data[at + 8 : at + 8 + length], score))
        at += 8 + length
    return out


def encode(text, table, scores):
    """BOS, and the merges of the best scores first."""
    ids = []
    for char in " " + text:
        raw = char.encode()
        ids += [table[raw]] if raw in table else [byte + 3 for byte in raw]
    names = {i: name for name, i in table.items()}
    while True:
        best = None
        for i in range(len(ids) - 1):
            merged = table.get(names[ids[i]] + names[ids[i + 1]])
            if merged is not None and (best is None or scores[merged] > best[0]):
                best = (scores[merged], i, merged)
        if best is None:
            return [1] + ids
        ids[best[1] : best[1] + 2] = [best[2]]


def sequences(text, tokenizer):
    with open(text, encoding="utf-8") as f:
        stories = [story.strip() for story in f.read().split("<|endoftext|>")]
    found = pieces(tokenizer)
    table = {}
    for i, (name, _) in enumerate(found):
        table.setdefault(name, i)
    scores = [score for _, score in found]
    stories = [story for story in stories if story][:SEQUENCES]
    return [encode(story, table, scores)[:CONTEXT] for story in stories]


def linears(model):
    return [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]


def rounded(model, bits, group):
    """Round to nearest, asymmetric."""
    for _, module in linears(model):
        w = module.weight.data
        rows = w.reshape(-1, group)
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        scale = (high - low).clamp(min=1e-9) / (2**bits - 1)
        zero = (-low / scale).round()
        codes = (rows / scale + zero).round().clamp(0, 2**bits - 1)
        module.weight.data = ((codes - zero) * scale).reshape(w.shape)


def with_hqq(model, bits, group):
    from hqq.core.quantize import Quantizer

    for _, module in linears(model):
        codes, meta = Quantizer.quantize(
            module.weight.data, nbits=bits, channel_wise=True, group_size=group, optimize=True, axis=1,
            compute_dtype=torch.float32, device="cpu", bitpack=False)
        module.weight.data = Quantizer.dequantize(codes, meta).reshape(module.weight.shape).float()


def with_llmcompressor(model, bits, group, method, ids):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from datasets import Dataset
    from llmcompressor import oneshot
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from llmcompressor.modifiers.awq import AWQModifier
    from llmcompressor.modifiers.quantization import GPTQModifier

    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=False, strategy="group", group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    settings = {"ignore": ["lm_head"], "config_groups": {"group_0": scheme}}
    if method == "gptq":
        recipe = [GPTQModifier(block_size=128, dampening_frac=0.01, **settings)]
    else:
        recipe, ids = [AWQModifier(**settings)], ids[:128]
    if not torch.cuda.is_available():
        # AWQ pins memory, which needs a driver and changes no number.
        torch.Tensor.pin_memory = lambda self, *_: self
    # The text is ids already; a tokenizer is asked for, and not used.
    unused = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"</s>": 0})), pad_token="</s>")
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(s) for s in ids]})
    oneshot(model=model, processor=unused, dataset=data, recipe=recipe, max_seq_length=CONTEXT, num_calibration_samples=len(ids),
            shuffle_calibration_samples=False, batch_size=1)
    for _, module in linears(model):
        scale = getattr(module, "weight_scale", None)
        if scale is not None:
            zero = getattr(module, "weight_zero_point", None)
            module.weight.data = fake_quantize(module.weight.data, scale, zero, weights).float()


def main():
    model_dir, tokenizer, text, out, method, bits, group = sys.argv[1:]
    bits, group = int(bits), int(group)
    torch.set_num_threads(THREADS)
    from safetensors.torch import load_file, save_file
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = sequences(text, tokenizer)
    with torch.no_grad():
        if method == "rtn":
            rounded(model, bits, group)
        elif method == "hqq":
            with_hqq(model, bits, group)
        else:
            with_llmcompressor(model, bits, group, method, ids)
    # The other tensors as well: AWQ moves scales into the norms.
    tensors = load_file(os.path.join(model_dir, "model.safetensors"))
    state = model.state_dict()
    tensors = {name: state[name].float().contiguous() for name in tensors}
    os.makedirs(out)
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    shutil.copy(os.path.join(model_dir, "config.json"), out)
    weights = sum(module.weight.numel() for _, module in linears(model))
    per_group = 16 + (16 if method == "hqq" else bits)
    print(json.dumps({"method": method, "bits": bits, "group": group, "weights": weights,
                      "bytes": round(weights * (bits + per_group / group) / 8)}))


main()
