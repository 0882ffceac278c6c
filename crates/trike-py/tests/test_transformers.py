"""A random Llama: converted, saved and loaded by transformers."""

import json
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="skipped: no PyTorch")
transformers = pytest.importorskip("transformers", reason="skipped: no transformers")

import trike  # noqa: E402
from trike.torch import TernaryLinear  # noqa: E402
from trike.transformers import TrikeConfig  # noqa: E402


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    path = tmp_path_factory.mktemp("llama") / "dense"
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("planes", [1, 3])
def test_convert_run_save_and_load(dense, planes, tmp_path):
    ids = torch.tensor([[1, 5, 9, 3]])
    model = transformers.AutoModelForCausalLM.from_pretrained(dense, quantization_config=TrikeConfig(planes=planes, group=64))
    layers = [module for module in model.modules() if isinstance(module, TernaryLinear)]
    assert len(layers) == 14 and type(model.lm_head) is torch.nn.Linear
    text = model.generate(ids, max_new_tokens=8, do_sample=False)
    model.save_pretrained(tmp_path / "ternary")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ternary")
    assert again.config.quantization_config.planes == planes
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)
    assert (again.generate(ids, max_new_tokens=8, do_sample=False) == text).all()
    dequantized = again.dequantize()
    torch.testing.assert_close(dequantized(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3)


def test_more_planes_are_nearer(dense):
    ids = torch.arange(20)[None]
    exact = transformers.AutoModelForCausalLM.from_pretrained(dense)(ids).logits

    def error(planes):
        config = TrikeConfig(planes=planes)
        return (transformers.AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)(ids).logits - exact).norm()

    assert error(1) > error(2) > error(4)


def test_bad_config():
    with pytest.raises(ValueError, match="1 to 6, got 9"):
        TrikeConfig(planes=9)


@pytest.fixture(scope="module")
def story_llama(tiny_path, tmp_path_factory):
    """A random Llama with the bundled model's tokenizer, so that the command reads and writes text."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("story") / "dense"
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("planes, group", [(1, "row"), (2, 64), (3, "tensor")])
def test_the_command_and_the_model_read_what_is_saved(story_llama, tiny_path, planes, group, tmp_path):
    """Saved, quantized, reloaded: transformers, `trike.Model` and `trike run` continue a prompt with the same text."""
    config = TrikeConfig(planes=planes, group=group)
    model = transformers.AutoModelForCausalLM.from_pretrained(story_llama, quantization_config=config)
    ternary = tmp_path / "ternary"
    model.save_pretrained(ternary)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_path / name, ternary / name)
    again = transformers.AutoModelForCausalLM.from_pretrained(ternary)

    own = trike.Model(ternary, device="cpu", activations="f32", head="stored")
    prompt, count = "Once upon a time", 24
    ids = own.tokenize(prompt)
    text = own.generate(prompt, max_tokens=count, temperature=0.0, kv="f32")
    made = again.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)[0, len(ids) :].tolist()
    assert made[: len(text["ids"])] == text["ids"] and len(text["ids"]) > 8
    torch.testing.assert_close(
        torch.from_numpy(own.logits(ids)), again(torch.tensor([ids])).logits[0], rtol=1e-3, atol=1e-3
    )
    command = [sys.executable, "-m", "trike", "run", "-m", str(ternary), "-p", prompt, "-n", str(count), "--json"]
    options = ["--temperature", "0", "--activations", "f32", "--head", "stored", "--kv", "f32", "--device", "cpu"]
    done = subprocess.run([*command, *options], capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["ids"], outcome["text"]) == (text["ids"], text["text"])


def test_directories_of_trike_load(tiny_path, tmp_path):
    """And the other way round: what `trike.quantize` writes."""
    path = tmp_path / "dense"
    trike.convert(tiny_path, path, "f16", embeddings="f16", progress=False)
    trike.quantize(path, tmp_path / "ternary", planes=2, method="least_squares", tune=False, sequences=2, progress=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ternary")
    assert sum(isinstance(module, TernaryLinear) for module in model.modules()) == 28
    own = trike.Model(tmp_path / "ternary", device="cpu", activations="f32")
    ids = own.tokenize("Once upon a time")
    torch.testing.assert_close(
        torch.from_numpy(own.logits(ids)), model(torch.tensor([ids])).logits[0].float(), rtol=2e-2, atol=2e-2
    )
    with pytest.raises(ValueError, match="int8"):
        transformers.AutoModelForCausalLM.from_pretrained(tiny_path)


PEAK = """
import json, re, sys
import torch, transformers
from trike.transformers import TrikeConfig
# The peak of this process; that of `getrusage` begins with the parent's.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
started = peak()
# A `quantization_config` of None would take the place of the saved one.
wanted = {"quantization_config": TrikeConfig(planes=2)} if sys.argv[2] == "convert" else {}
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], **wanted)
loaded = peak()
assert (type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear) == (sys.argv[2] == "dense")
model.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=4, do_sample=False)
print(json.dumps([started, loaded, peak()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="skipped: peak memory is measured on Linux")
def test_peak_memory(tmp_path, capsys):
    """A converted model needs less memory than the dense one, also at its peak."""
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=4
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "dense")
    quantization = TrikeConfig(planes=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense", quantization_config=quantization)
    model.save_pretrained(tmp_path / "ternary")
    weights = sum(p.numel() * p.element_size() for p in transformers.LlamaForCausalLM(config).parameters()) >> 20
    del model

    def peaks(path, what):
        done = subprocess.run([sys.executable, "-c", PEAK, str(path), what], capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    dense, converted, loaded = peaks(tmp_path / "dense", "dense"), peaks(tmp_path / "dense", "convert"), peaks(tmp_path / "ternary", "load")
    with capsys.disabled():
        size = sum(file.stat().st_size for file in (tmp_path / "ternary").glob("*.safetensors")) >> 20
        print(f"\n{weights} MiB of weights in f32, {size} MiB saved; MiB of peak memory after importing, loading and 4 tokens:")
        print(f"dense {dense}, converted {converted}, saved and loaded {loaded}")
    assert loaded[2] - loaded[0] < dense[2] - dense[0]
    assert converted[1] - converted[0] < 3 * weights
