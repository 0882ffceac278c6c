"""A model of transformers with ternary layers: converted, saved, loaded."""

import tempfile

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit from None

from trike.transformers import TrikeConfig

with tempfile.TemporaryDirectory() as folder:
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
    )
    transformers.LlamaForCausalLM(config).save_pretrained(f"{folder}/dense")
    wanted = TrikeConfig(planes=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/dense", quantization_config=wanted)
    model.save_pretrained(f"{folder}/ternary")
    again = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/ternary")
    ids = torch.tensor([[1, 2, 3]])
    assert (model.generate(ids, max_new_tokens=5, do_sample=False) == again.generate(ids, max_new_tokens=5, do_sample=False)).all()
    print(again.model.layers[0].mlp.up_proj)
