"""Trains a small Qwen2 that copies from far back in its context, to measure caches and selected keys with:

    python long_context.py SHORT STORIES WIKIPEDIA PLAYS HELD_OUT_STORIES HELD_OUT_WIKIPEDIA --stages 512:4:500
    python long_context.py OUT STORIES ... --start SHORT --seed 1 --stages 512:6:800 2048:1:150 4096:1:100

STORIES has <|endoftext|> between stories, WIKIPEDIA the headings of WikiText-2; the last tenth of PLAYS is held out. OUT becomes a HuggingFace
directory with the text that is held out, heldout.txt. A stage is LENGTH:ROWS:STEPS. The context is 4,096 tokens; --context with --start extends
that of a trained model.

A row is a stretch of the shuffled documents; in three of four, sentences and other spans occur again later, at all distances, as they do in logs,
code and quotations. In rows that are shorter than the context, positions jump forward at three places, so that distances up to the whole context
are learned from short rows.

Prints losses of new and of repeated tokens; at the end, for held-out rows of the whole context, the loss and the share of repeated tokens that are
predicted, by their distance. Needs numpy, torch, safetensors and tokenizers from PyPI.
"""

import argparse
import json
import math
import pathlib
import re
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2048, 192, 384, 4, 4, 2, 64
THETA, EPS, BOS = 1e7, 1e-5, 0


def documents(stories, wikipedia, plays):
    docs = [s.strip() for s in stories.split("<|endoftext|>")]
    docs += [a.strip() for a in re.split(r"\n(?= = [^=\n]+ = \n)", wikipedia)]
    speeches = plays.split("\n\n")
    docs += ["\n\n".join(speeches[i : i + 16]) for i in range(0, len(speeches), 16)]
    docs = [d for d in docs if d]
    np.random.default_rng(0).shuffle(docs)
    return "\n".join(docs)


def make_tokenizer(text):
    """Byte-level BPE that puts BOS before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


class Text:
    """Tokens of a text, and rows from it."""

    def __init__(self, text, tokenizer):
        self.ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
        stops = [tokenizer.decode([i]).rstrip(" \"'").endswith((".", "!", "?", "\n")) for i in range(VOCAB)]
        # The tokens after which a sentence or a line starts.
        self.starts = np.flatnonzero(np.array(stops)[self.ids]) + 1

    def row(self, rng, length):
        """Tokens, and for each the distance to what it repeats, or 0. The first four of a repetition count as new."""
        first = rng.integers(len(self.starts) * 9 // 10)
        at = self.starts[first]
        if rng.random() < 0.25 or len(self.ids) - at < length:
            at = min(at, len(self.ids) - length)
            return np.append(BOS, self.ids[at : at + length - 1]), np.zeros(length, int)
        ids, distances, starts = [BOS], [0], [1]
        while len(ids) < length:
            for _ in range(rng.integers(1, 9)):
                first = min(first + 1, len(self.starts) - 1)
                ids.extend(self.ids[at : self.starts[first]])
                at = self.starts[first]
                starts.append(len(ids))
            distances.extend([0] * (len(ids) - len(distances)))
            for _ in range(rng.integers(0, 4)):
                if rng.random() < 0.6:
                    source, count = starts[rng.integers(len(starts) - 1)], rng.integers(10, 65)
                else:
                    source, count = rng.integers(1, len(ids)), rng.integers(8, 97)
                span = ids[source : source + count]
                distance = len(ids) - source
                distances.extend([0] * min(4, len(span)) + [distance] * (len(span) - 4))
                ids.extend(span)
        return np.array(ids[:length]), np.array(distances[:length])


def positions(rng, length, context):
    """Increasing positions below `context`, with three jumps."""
    jumps = np.zeros(length, int)
    for at, jump in zip(rng.integers(1, length, 3), rng.multinomial(rng.integers(context - length + 1), rng.dirichlet([1] * 3))):
        jumps[at] += jump
    return np.arange(length) + np.cumsum(jumps)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x, (HIDDEN,), self.weight.to(x.dtype), EPS)


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = linear(HIDDEN, HEADS * HEAD_DIM, True), linear(HEADS * HEAD_DIM, HIDDEN)
        self.k_proj, self.v_proj = (linear(HIDDEN, KV_HEADS * HEAD_DIM, True) for _ in range(2))

    def forward(self, x, cos, sin):
        heads = [p(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)]
        q, k = (rotate(h, cos, sin) for h in heads[:2])
        k, v = (h.repeat_interleave(HEADS // KV_HEADS, 1) for h in (k, heads[2]))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(HIDDEN, INNER), linear(HIDDEN, INNER), linear(INNER, HIDDEN)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


@torch.no_grad()
def put_in_copying(embedding, before, after):
    """Puts two kinds of heads into the initial weights that take models ten million tokens to learn (Olsson et al., 2022), so that training
    can begin with copying. In `before`, two heads attend to one and two tokens back: the biases of queries and keys are rotated by
    positions, so that their product depends on the distance alone. They write a random projection of the token that they see into a part of
    the state of its own. In `after`, a head attends to the positions that follow the last two tokens elsewhere, by the slowly rotated part of its
    head, and copies what stands there.
    """
    half = HEAD_DIM // 2
    seen, first, second = torch.eye(HIDDEN)[torch.randperm(HIDDEN)].split([HIDDEN - HEAD_DIM, half, half])
    embedding.weight.copy_(embedding.weight @ seen.T @ seen)
    project = nn.init.orthogonal_(torch.empty(half, len(seen))) @ seen
    angles = THETA ** (-torch.arange(half) / half)
    fast = slice(0, half // 2)
    slow = [i for i in range(HEAD_DIM) if i % half >= half // 2]
    before.k_proj.weight[:HEAD_DIM] = 0
    before.k_proj.bias[fast] = 6.0
    before.v_proj.weight[:half] = project
    for head, part in enumerate((first, second)):
        begin = head * HEAD_DIM
        before.q_proj.weight[begin : begin + HEAD_DIM] = 0
        before.q_proj.bias[begin : begin + half // 2] = 6.0 * (angles * (head + 1)).cos()[fast]
        before.q_proj.bias[begin + half : begin + half + half // 2] = -6.0 * (angles * (head + 1)).sin()[fast]
        before.o_proj.weight[:, begin : begin + half] = 0.05 * part.T
    turn = nn.init.orthogonal_(torch.empty(half, half))
    after.q_proj.weight[:HEAD_DIM] = 0
    after.k_proj.weight[:HEAD_DIM] = 0
    after.q_proj.weight[slow] = 1.6 * (project + turn @ first)
    after.k_proj.weight[slow] = 1.6 * (first + turn @ second)
    copy = nn.init.orthogonal_(torch.empty(HEAD_DIM, len(seen))) @ seen
    after.v_proj.weight[:HEAD_DIM] = copy
    after.o_proj.weight[:, :HEAD_DIM] = 0.2 * copy.T


class Qwen2(nn.Module):
    """With the names of HuggingFace's Qwen2, so that the state is a checkpoint. The head is the embedding."""

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(VOCAB, HIDDEN), "layers": nn.ModuleList(Block() for _ in range(LAYERS)), "norm": Norm()})
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.05 if "embed" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        layers = self.model["layers"]
        put_in_copying(self.model["embed_tokens"], layers[1].self_attn, layers[2].self_attn)

    def forward(self, ids, at):
        angles = at[:, None, :, None] / THETA ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = angles.cos(), angles.sin()
        x = self.model["embed_tokens"](ids)
        if torch.is_autocast_enabled("cpu"):
            x, cos, sin = x.bfloat16(), cos.bfloat16(), sin.bfloat16()
        for block in self.model["layers"]:
            x = block(x, cos, sin)
        return F.linear(self.model["norm"](x), self.model["embed_tokens"].weight)


def save(model, out, context):
    state = {name: p.contiguous() for name, p in model.state_dict().items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "max_position_embeddings": context, "rope_theta": THETA, "rms_norm_eps": EPS, "hidden_act": "silu",
        "tie_word_embeddings": True, "bos_token_id": BOS, "eos_token_id": None, "torch_dtype": "float32",
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(config, indent=1))


def train(model, text, args):
    rng = np.random.default_rng(args.seed)
    stages = [tuple(map(int, stage.split(":"))) for stage in args.stages]
    steps = sum(stage[2] for stage in stages)
    matrices = [p for name, p in model.named_parameters() if "_proj.weight" in name]
    others = [p for name, p in model.named_parameters() if "_proj.weight" not in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=args.rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    # A short warm-up, and a fall to a twentieth over the last two fifths.
    def factor(step):
        return min((step + 1) / 50, 1.0, 0.05 + 0.95 * (steps - step) / (0.4 * steps))

    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    step, tokens, sums, began = 0, 0, np.zeros(4), time.time()
    for length, rows, count in stages:
        for _ in range(count):
            batch = [text.row(rng, length + 1) for _ in range(rows)]
            ids = torch.from_numpy(np.stack([ids for ids, _ in batch]))
            at = torch.from_numpy(np.stack([positions(rng, length, args.context) for _ in batch])).float()
            repeated = torch.from_numpy(np.stack([distances[1:] > 0 for _, distances in batch]))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids[:, :-1], at)
            losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
            losses.mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for item in optimizers + schedules:
                item.step()
            model.zero_grad()
            losses, repeated = losses.detach(), repeated.flatten()
            sums += [losses[~repeated].sum(), (~repeated).sum(), losses[repeated].sum(), repeated.sum()]
            step, tokens = step + 1, tokens + ids[:, 1:].numel()
            if step % 25 == 0 or step == steps:
                new, again = sums[0] / sums[1], sums[2] / max(sums[3], 1)
                print(f"step {step}  length {length}  {tokens / 1e6:.2f} M tokens  loss {new:.3f} new, {again:.3f} repeated  {(time.time() - began) / 60:.1f} min", flush=True)  # fmt: skip
                sums[:] = 0
                save(model, args.out, args.context)


@torch.no_grad()
def evaluate(model, text, context, rows):
    """Prints the loss of new tokens, and the share of repeated ones that are predicted, by their distance."""
    rng = np.random.default_rng(1)
    right, count, losses = np.zeros(8), np.zeros(8), []
    for _ in range(rows):
        ids, distances = text.row(rng, context + 1)
        ids, distances = torch.from_numpy(ids)[None], distances[1:]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1], torch.arange(context)[None].float())[0].float()
        losses.append(F.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()[distances == 0])
        hits = (logits.argmax(-1) == ids[0, 1:]).numpy()
        for bin in range(8):
            here = (distances > 0) & (distances * 8 // (context + 1) == bin)
            right[bin], count[bin] = right[bin] + hits[here].sum(), count[bin] + here.sum()
    print(f"held out, {rows} rows: loss {np.concatenate(losses).mean():.3f} new")
    for bin in range(8):
        print(f"repeated {bin * context // 8:4} to {(bin + 1) * context // 8:4} tokens before: {right[bin] / max(count[bin], 1):.3f} of {count[bin]:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("out", "stories", "wikipedia", "plays", "held_out_stories", "held_out_wikipedia"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--stages", nargs="*", default=[])
    parser.add_argument("--start", type=pathlib.Path)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    plays = args.plays.read_text(encoding="utf-8")
    split = plays.index("\n\n", len(plays) * 9 // 10)
    text = documents(args.stories.read_text(encoding="utf-8"), args.wikipedia.read_text(encoding="utf-8"), plays[:split])
    held_out = documents(args.held_out_stories.read_text(encoding="utf-8"), args.held_out_wikipedia.read_text(encoding="utf-8"), plays[split:])
    (args.out / "heldout.txt").write_text(held_out, encoding="utf-8")
    tokenizer = make_tokenizer(text)
    tokenizer.save(str(args.out / "tokenizer.json"))
    model = Qwen2()
    if args.start:
        model.load_state_dict(load_file(args.start / "model.safetensors"))
    text, held_out = Text(text, tokenizer), Text(held_out, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(text.ids)} tokens, {len(held_out.ids)} held out", flush=True)
    train(model, text, args)
    evaluate(model, held_out, args.context, 24)


if __name__ == "__main__":
    main()
