"""A random Llama: converted, saved and loaded by transformers."""

import pytest

torch = pytest.importorskip("torch", reason="skipped: no PyTorch")
transformers = pytest.importorskip("transformers", reason="skipped: no transformers")

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
