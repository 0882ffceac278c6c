"""Makes mixed_llama3.txt: token ids of seeded mixed-script texts by the tiktoken package.

    pip install tiktoken
    python mixed_llama3.py path/to/llama3/tokenizer.model > mixed_llama3.txt

A line for each text: a hash of its bytes (FNV-1a, 64 bits) and the ids. The texts are those of
`common/mixed.rs`, made again here; the hash says that both made the same.
"""

import sys

import tiktoken
from tiktoken.load import load_tiktoken_bpe

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MASK = (1 << 64) - 1
CLASSES = [
    [(0x61, 0x7A), (0x41, 0x5A), (0xC0, 0xD6), (0xE0, 0xF6)],
    [(0x430, 0x44F), (0x410, 0x42F), (0x451, 0x451)],
    [(0x4E00, 0x4FFF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xAE00)],
    [(0x621, 0x63A), (0x641, 0x64A), (0x64B, 0x652), (0x5D0, 0x5EA)],
    [(0x905, 0x939), (0x93E, 0x94D), (0xE01, 0xE30)],
    [(0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x2600, 0x26FF)],
    [(0x300, 0x36F), (0x1AB0, 0x1ABE), (0x20D0, 0x20DC)],
    [(0x1, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0xFEFF, 0xFEFF)],
    [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xBC, 0xBE)],
    [(0x20, 0x20), (0x20, 0x20), (0x9, 0xA), (0xD, 0xD), (0xA0, 0xA0), (0x3000, 0x3000)],
    [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), (0x3001, 0x3011)],
    [(0x10FFF0, 0x10FFFD), (0xE000, 0xE010), (0x1D400, 0x1D4FF), (0x20000, 0x20040)],
]
FIXED = [
    "\U0001F468\u200D\U0001F469\u200D\U0001F467",
    "\U0001F44B\U0001F3FD",
    "\U0001F1FA\U0001F1E6",
    "I'LL we're DON'T it's",
    "e\u0301a\u0308",
    "  \n\n \t ",
]


class Rng:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n


def text(rng):
    out = []
    for _ in range(1 + rng.below(12)):
        kind = rng.below(len(CLASSES) + 1)
        if kind == len(CLASSES):
            out.append(FIXED[rng.below(len(FIXED))])
            continue
        ranges = CLASSES[kind]
        for _ in range(1 + rng.below(8)):
            low, high = ranges[rng.below(len(ranges))]
            out.append(chr(low + rng.below(high - low + 1)))
        if rng.below(2) == 1:
            out.append(" ")
    return "".join(out)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def main():
    encoding = tiktoken.Encoding(
        name="llama3", pat_str=SPLIT, mergeable_ranks=load_tiktoken_bpe(sys.argv[1]), special_tokens={}
    )
    rng = Rng(2024)
    for _ in range(500):
        line = text(rng)
        ids = encoding.encode(line)
        print(f"{fnv1a(line.encode()):016x}", *ids)


if __name__ == "__main__":
    main()
