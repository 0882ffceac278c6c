"""The golden numbers of the bundled model, from the numpy decoder beside this script.

usage: golden.py     (writes crates/trike-testkit/data/tiny.npz; needs numpy)

`ids`: the greedy continuation of "Once upon a time", 205 ids with BOS. `logits`: those of its first 40 ids, f32. `tokens` and
`nats`: how many ids of the stories in tiny.txt are predicted, and the mean of -ln of their probabilities, each story after BOS.
The text is encoded by merging the pair of the lowest rank, as the tokenizer of the model's file says; run it again when the bundled
model changes.
"""

import json
import pathlib
import tempfile

import numpy as np

import decoder

ROOT = pathlib.Path(__file__).resolve().parents[4]
MODEL = ROOT / "models" / "tiny"
DATA = ROOT / "crates" / "trike-testkit" / "data"
BOS = 1


def encode(text):
    model = json.loads((MODEL / "tokenizer.json").read_text())["model"]
    vocab = model["vocab"]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    rank = {tuple(pair): i for i, pair in enumerate(pairs)}
    symbols = []
    for char in ("\u2581" + text).replace(" ", "\u2581"):
        symbols += [char] if char in vocab else [f"<0x{byte:02X}>" for byte in char.encode()]
    while True:
        found = min((rank.get(pair, len(rank)), i) for i, pair in enumerate(zip(symbols, symbols[1:])))
        if found[0] == len(rank):
            return [BOS] + [vocab[symbol] for symbol in symbols]
        symbols[found[1] : found[1] + 2] = ["".join(symbols[found[1] : found[1] + 2])]


def logits(ids):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "logits"
        decoder.main(MODEL, out, ",".join(map(str, ids)))
        return np.fromfile(out, "<f4").reshape(len(ids), -1)


def nats(rows, ids):
    rows = rows.astype(np.float64)
    top = rows.max(-1)
    return (top + np.log(np.exp(rows - top[:, None]).sum(-1)) - rows[np.arange(len(ids)), ids]).sum()


def main():
    ids = encode("Once upon a time")
    for _ in range(200):
        ids.append(int(logits(ids)[-1].argmax()))
    stories = [story.strip() for story in (DATA / "tiny.txt").read_text().split("<|endoftext|>")]
    total, tokens = 0.0, 0
    for story in stories:
        of = encode(story)
        total += nats(logits(of[:-1]), of[1:])
        tokens += len(of) - 1
    np.savez_compressed(
        DATA / "tiny.npz",
        ids=np.array(ids),
        logits=logits(ids[:40]),
        tokens=np.array([tokens]),
        nats=np.array([total / tokens], dtype=np.float32),
    )
    print(len(ids), tokens, total / tokens)


if __name__ == "__main__":
    main()
