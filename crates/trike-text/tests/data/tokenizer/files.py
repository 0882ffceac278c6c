"""Ids by transformers 5, for what the files beside a tokenizer may say.

    python files.py path/to/shared/data/tokenizers > files.json
"""

import itertools
import json
import pathlib
import shutil
import sys
import tempfile

from transformers import AutoTokenizer

TEXTS = ["Hello world", "Hello <extra> world", "<extra>a <x2>"]
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2}
TOKEN = {"content": "<extra>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False}
STRIPS = {**TOKEN, "lstrip": True, "rstrip": True}


def model_cases():
    llama = {"tokenizer_class": "LlamaTokenizer"}
    yield {"tokenizer_config.json": llama}
    for bos, eos in itertools.product((True, False, None), (True, False, None)):
        yield {"tokenizer_config.json": {**llama, "add_bos_token": bos, "add_eos_token": eos}}
    bos = {**llama, "add_bos_token": True}
    yield {"tokenizer_config.json": bos, "added_tokens.json": {"<x2>": 32001, "<extra>": 32000}}
    yield {"tokenizer_config.json": {**bos, "bos_token": "</s>"}}
    yield {"tokenizer_config.json": {**bos, "added_tokens_decoder": {"32000": TOKEN}}}
    yield {"tokenizer_config.json": bos, "special_tokens_map.json": {"bos_token": {"content": "</s>"}}}
    yield {"tokenizer_config.json": {**bos, "legacy": True}}
    yield {"tokenizer_config.json": {**bos, "add_prefix_space": False}}
    yield {"tokenizer_config.json": {**bos, "added_tokens_decoder": {"32000": TOKEN}}, "added_tokens.json": {"<x2>": 32000}}


def json_cases():
    for processor in (True, False):
        for config in (
            None,
            {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
            {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False},
            {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True},
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "</s>"},
        ):
            yield processor, {} if config is None else {"tokenizer_config.json": config}
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    yield True, {"tokenizer_config.json": {**fast, "additional_special_tokens": ["<extra>"]}}
    yield True, {"tokenizer_config.json": {**fast, "pad_token": "<extra>"}}
    yield True, {"tokenizer_config.json": fast, "added_tokens.json": {"<extra>": 32002}}
    yield True, {"special_tokens_map.json": {"pad_token": "<x2>"}, "tokenizer_config.json": fast}
    yield True, {"tokenizer_config.json": {**fast, "added_tokens_decoder": {"32002": STRIPS}}}
    yield True, {
        "tokenizer_config.json": {**fast, "added_tokens_decoder": {"32002": TOKEN}},
        "special_tokens_map.json": {"pad_token": "<x2>"},
    }


def main():
    source = pathlib.Path(sys.argv[1])
    whole = json.loads((source / "bitnet_b1_58-large_tokenizer.json").read_text())
    cases = [("model", files) for files in model_cases()]
    cases += [("json" if processor else "json without post-processor", files) for processor, files in json_cases()]
    goldens = []
    for kind, files in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            if kind == "model":
                shutil.copy(source / "llama2_tokenizer.model", folder / "tokenizer.model")
            else:
                processor = whole["post_processor"] if kind == "json" else None
                (folder / "tokenizer.json").write_text(json.dumps({**whole, "post_processor": processor}))
            (folder / "config.json").write_text(json.dumps(CONFIG))
            for file, content in files.items():
                (folder / file).write_text(json.dumps(content))
            tokenizer = AutoTokenizer.from_pretrained(folder)
            ids = [tokenizer(text)["input_ids"] for text in TEXTS]
        goldens.append({"kind": kind, "files": files, "ids": ids})
    print("[")
    print(",\n".join(json.dumps(golden) for golden in goldens))
    print("]")


if __name__ == "__main__":
    main()
