"""Layers against PyTorch's own operations."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="skipped: no PyTorch")

import trike  # noqa: E402
from trike.torch import BitLinear, TernaryLinear, convert  # noqa: E402


@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize("group", [32, "row", "tensor"])
@pytest.mark.parametrize("shape", [(70,), (3, 70), (2, 3, 70)])
def test_forward_and_gradients(planes, group, shape):
    torch.manual_seed(1)
    layer = TernaryLinear(70, 24, planes=planes, group=group)
    x = torch.randn(shape, requires_grad=True)
    y = layer(x)
    weight = torch.from_numpy(layer.tensor.to_numpy()).requires_grad_()
    x2 = x.detach().clone().requires_grad_()
    y2 = torch.nn.functional.linear(x2, weight, layer.bias.detach())
    torch.testing.assert_close(y, y2, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(y)
    y.backward(grad)
    y2.backward(grad)
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.weight.grad, weight.grad, rtol=1e-4, atol=1e-4)


def test_training_lowers_the_loss():
    torch.manual_seed(1)
    x = torch.randn(256, 32)
    target = x @ torch.sign(torch.randn(32, 4))
    layer = TernaryLinear(32, 4, group="row")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(150):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("planes", [1, 2])
def test_frozen_layers_save_and_load(planes, tmp_path):
    layer = TernaryLinear.from_linear(torch.nn.Linear(64, 16), planes=planes, group=32)
    x = torch.randn(5, 64)
    assert set(layer.state_dict()) == {"bias", "weight.trits", "weight.scales"}
    torch.save(layer.state_dict(), tmp_path / "layer")
    other = TernaryLinear(64, 16, planes=planes, group=32, latent=False)
    other.load_state_dict(torch.load(tmp_path / "layer"))
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    assert layer(x.to(torch.bfloat16)).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"\(\.\.\., 64\), got \(5, 3\)"):
        layer(x[:, :3])


def test_bitlinear_is_the_formula():
    torch.manual_seed(2)
    layer = BitLinear(48, 8)
    x = torch.randn(4, 48)
    w = layer.weight.detach()
    mean = w.abs().mean()
    ternary = (w / mean).round().clamp(-1, 1) * mean
    scale = 127 / x.abs().amax(dim=1, keepdim=True)
    rounded = (x * scale).round() / scale
    torch.testing.assert_close(layer(x), rounded @ ternary.T, rtol=1e-4, atol=1e-4)
    frozen = BitLinear(48, 8).freeze()
    assert "weight.trits" in frozen.state_dict() and frozen(x).shape == (4, 8)


def test_convert_a_model():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    x = torch.randn(64, 32)
    before = model(x)
    convert(model, planes=3, group="row")
    assert isinstance(model[0], TernaryLinear) and isinstance(model[2], TernaryLinear)
    assert torch.nn.functional.cosine_similarity(model(x), before).mean() > 0.98


def test_tensors_are_borrowed_through_dlpack():
    trits = torch.randint(-1, 2, (4, 8), dtype=torch.int8)
    tensor = trike.TritTensor(trits, torch.ones(4))
    x = torch.randn(2, 8)
    np.testing.assert_allclose(tensor.matmul(x), (x @ trits.T.float()).numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="contiguous"):
        tensor.matmul(torch.randn(8, 2).T)
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        tensor.matmul(torch.randn(2, 8, requires_grad=True))
