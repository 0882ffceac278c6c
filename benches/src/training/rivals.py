"""A training step in PyTorch or JAX: reads ids, then takes a step per line and prints "seconds loss"."""

import math
import sys
import time

ROWS, LENGTH, HIDDEN, FFN, LAYERS, HEADS, KV, VOCAB, EPS, RATE = 16, 256, 256, 512, 4, 4, 2, 512, 1e-5, 1e-3
DIM = HIDDEN // HEADS


def shapes():
    block = {"q": (HIDDEN, HIDDEN), "k": (KV * DIM, HIDDEN), "v": (KV * DIM, HIDDEN), "o": (HIDDEN, HIDDEN),
             "gate": (FFN, HIDDEN), "up": (FFN, HIDDEN), "down": (HIDDEN, FFN), "n1": (HIDDEN,), "n2": (HIDDEN,)}
    yield "embedding", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in block.items():
            yield f"{layer}.{name}", shape
    yield "norm", (HIDDEN,)


def with_torch(ids, threads, compiled):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    p = {name: torch.nn.Parameter(torch.randn(shape) * 0.02 if len(shape) > 1 else torch.ones(shape))
         for name, shape in shapes()}
    optimizer = torch.optim.AdamW(p.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
    ids = torch.tensor(ids).reshape(ROWS, LENGTH + 1)
    x_ids, targets = ids[:, :-1], ids[:, 1:].reshape(-1)
    half = DIM // 2
    angle = torch.arange(LENGTH)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

    def ternary(w):
        fixed = w.detach()
        scale = fixed.abs().mean()
        return w + ((fixed / scale).round().clamp(-1, 1) * scale - fixed)

    def int8(x):
        fixed = x.detach()
        scale = fixed.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        return x + ((fixed / scale).round() * scale - fixed)

    def heads(x, count):
        return x.view(ROWS, LENGTH, count, DIM).transpose(1, 2)

    def rotated(x):
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def loss_of():
        x = F.embedding(x_ids, p["embedding"])
        for l in range(LAYERS):
            n = int8(F.rms_norm(x, (HIDDEN,), p[f"{l}.n1"], EPS))
            q, k, v = (F.linear(n, ternary(p[f"{l}.{name}"])) for name in "qkv")
            a = F.scaled_dot_product_attention(rotated(heads(q, HEADS)), rotated(heads(k, KV)), heads(v, KV),
                                               is_causal=True, enable_gqa=True)
            x = x + F.linear(int8(a.transpose(1, 2).reshape(ROWS, LENGTH, HIDDEN)), ternary(p[f"{l}.o"]))
            n = int8(F.rms_norm(x, (HIDDEN,), p[f"{l}.n2"], EPS))
            g = F.silu(F.linear(n, ternary(p[f"{l}.gate"]))) * F.linear(n, ternary(p[f"{l}.up"]))
            x = x + F.linear(int8(g), ternary(p[f"{l}.down"]))
        logits = F.linear(F.rms_norm(x, (HIDDEN,), p["norm"], EPS), p["embedding"])
        return F.cross_entropy(logits.view(-1, VOCAB), targets)

    if compiled:
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def with_jax(ids):
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(1)
    p = {name: jnp.asarray(rng.standard_normal(shape) * 0.02 if len(shape) > 1 else np.ones(shape), jnp.float32)
         for name, shape in shapes()}
    ids = jnp.asarray(ids).reshape(ROWS, LENGTH + 1)
    x_ids, targets = ids[:, :-1], ids[:, 1:]
    half = DIM // 2
    angle = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = (jnp.asarray(np.concatenate([f(angle)] * 2, -1), jnp.float32) for f in (np.cos, np.sin))
    mask = jnp.where(np.tril(np.ones((LENGTH, LENGTH), bool)), 0.0, -jnp.inf)
    stop = jax.lax.stop_gradient

    def ternary(w):
        scale = jnp.abs(w).mean()
        return w + stop(jnp.clip(jnp.round(w / scale), -1, 1) * scale - w)

    def int8(x):
        scale = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-5) / 127
        return x + stop(jnp.round(x / scale) * scale - x)

    def norm(x, w):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * w

    def heads(x, count):
        return x.reshape(ROWS, LENGTH, count, DIM).transpose(0, 2, 1, 3)

    def rotated(x):
        return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    def loss_of(p):
        x = p["embedding"][x_ids]
        for l in range(LAYERS):
            n = int8(norm(x, p[f"{l}.n1"]))
            q, k, v = (n @ ternary(p[f"{l}.{name}"]).T for name in "qkv")
            q, k, v = rotated(heads(q, HEADS)), rotated(heads(k, KV)), heads(v, KV)
            k, v = (jnp.repeat(t, HEADS // KV, axis=1) for t in (k, v))
            scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(DIM) + mask
            a = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(ROWS, LENGTH, HIDDEN)
            x = x + int8(a) @ ternary(p[f"{l}.o"]).T
            n = int8(norm(x, p[f"{l}.n2"]))
            g = jax.nn.silu(n @ ternary(p[f"{l}.gate"]).T) * (n @ ternary(p[f"{l}.up"]).T)
            x = x + int8(g) @ ternary(p[f"{l}.down"]).T
        logits = jax.nn.log_softmax(norm(x, p["norm"]) @ p["embedding"].T, -1)
        return -jnp.take_along_axis(logits, targets[..., None], -1).mean()

    @jax.jit
    def update(p, m, s, t):
        loss, g = jax.value_and_grad(loss_of)(p)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        s = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, s, g)
        c1, c2 = 1 - 0.9**t, 1 - 0.95**t
        p = jax.tree.map(lambda p, m, s: p - RATE * (m / c1) / (jnp.sqrt(s / c2) + 1e-8), p, m, s)
        return p, m, s, loss

    zeros = jax.tree.map(jnp.zeros_like, p)
    state = [p, zeros, zeros, 0]

    def step():
        state[3] += 1
        *state[:3], loss = update(*state)
        return float(loss)

    return step


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    ids = [int(word) for word in sys.stdin.readline().split()]
    step = with_jax(ids) if name == "jax" else with_torch(ids, threads, name == "torch-compiled")
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        print(time.perf_counter() - start, loss, flush=True)


main()
