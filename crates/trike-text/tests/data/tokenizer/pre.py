"""Pieces of hard texts by the `tokenizers` package, for every pre-tokenizer that GGUF files name.

    python pre.py > pre.json

The expressions are those of the models' `tokenizer.json`, each a `Split` that isolates its matches. A piece is written as its
length in characters.
"""

import json
import sys

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def cased(ending, rest, and_not=""):
    upper, lower = UPPER + and_not, LOWER + and_not
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}[{upper}]*[{lower}]+{ending}|{before}[{upper}]+[{lower}]*{ending}{rest}"


SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = cased(CONTRACTIONS + "?", r"|\p{N}{1,3}" + SLASHES)
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
MIXED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
V3 = MIXED + r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
LINES = r"[^\n]+|[\n]+"
LATIN = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f"
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126"
    "\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
RULES = {
    "gpt-2": [GPT2],
    "llama-bpe": [WORDS + r"\p{N}{1,3}" + TAIL],
    "qwen2": [WORDS + r"\p{N}" + TAIL],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "dbrx": [WORDS + r"\p{N}{1,3}" + TAIL],
    "smollm": [r"\p{N}", GPT2],
    "qwen35": [
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-llm": [
        "[\r\n]",
        rf"\s?[{LATIN}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}+",
    ],
    "deepseek-coder": [
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, V3],
    "spark2_5": [r"\p{N}{1,3}", CJK, MIXED + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "youtu": [
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        "|[\u3105-\u312f]+|" + CJK,
        cased(CONTRACTIONS + "?", r"|\p{N}" + SLASHES),
    ],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "jais-2": [
        WORDS
        + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        + "".join(r"|\s{%d}(?!\S)" % n for n in (512, 256, 128, 64, 32, 16, 8, 4))
        + r"|\s{1,2}(?!\S)|\s{1}"
    ],
    "tekken": [cased("", r"|\p{N}" + SLASHES)],
    "chameleon": [
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
    ],
    "gpt-4o": [GPT4O],
    "granite-embed-multi-97m": [GPT4O],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "kimi-k2": [r"[\p{Han}]+|" + cased(CONTRACTIONS + "?", r"|\p{N}{1,3}" + TAIL, r"&&[^\p{Han}]")],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "seed-coder": [WORDS + r"\p{N}{1}| ?[^\s\p{L}\p{N}" + "\r\n" + r"]+|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+"],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL],
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", ASIAN, V3],
    "laguna": [LINES, WORDS + r"\p{N}" + TAIL],
    "exaone-moe": [
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "minicpm5": [r"\p{N}{1,3}", WORDS + r"\p{N}+" + TAIL],
    "gemma4": [LINES],
    "sarvam-moe": [LINES],
    "whitespace": [r"\S+"],
}
TEXTS = [
    "Hello, World! It's 2024; I'LL pay $12,345.67 (now)...",
    "  leading\n\n\n  and   trailing  \t\n ",
    "DON'T we'Ve SHE'LL they'd I\u2019m",
    "1234567 12 123456789012 3.14159 \u0661\u0662\u0663\u0664 \u00b2\u00bd\u2167 a1b22c333d4444",
    "camelCaseWord HTTPServer XMLHttp \u0418\u043c\u044f\u0424\u0430\u0439\u043b\u0430 \u01c5\u02b0",
    "def f(x):\r\n\treturn x**2 / 3 // y\r\n\r\n# done/\n/path//to\n",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\uff01\u3002\u3002\u6771\u4eac\u3067\u30e9\u30fc\u30e1\u30f3\u3092\u98df\u3079\u307e\u3057\u305f\u3002abc\u6f22\u5b57123",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8 \u3131\u314f\u3105\u3106 \u1100\u1161",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947 \u0964 \u0645\u0631\u062d\u0628\u0627\u060c \u0634\u06a9\u0631\u06cc\u06c1\u06d4",
    "e\u0301a\u0308 cafe\u0301s \u0915\u094d\u0937 \u0301x o\u0302\u0323",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44b\U0001f3fd \U0001f1fa\U0001f1e6!! \u00a9\u2122\u20ac\u00a5 \U00020000\U0001d400",
    "a\u00a0b\u3000c\u2003\u2003d\u0085e\u200bf\ufefeg\ufeff",
    "<sentinel:12> IMGIMGABCDZ IMGIMGZ |x| ~~y~~ `z` {a}[b] <=> ^+$",
    "\u0126\u2126\u212a\u212b \u1fbe\u1f7d \ufb01\ufb03 \u1e9e \uff21\uff42\uff13 \u216b \u10d0\u1c90",
    "one two  three   four    five     six      seven",
    "\n \n  \n\t\n\r\n\r x",
    "12345\n6789\t0 -12 +34 5e10 0x1F 1,000,000 1_000",
    "\u2026\u2026\u201cquote\u201d\u2014dash\u2013en \u00abg\u00bb \u00bfqu\u00e9? \u3010x\u3011\ufe30",
    "x\x01\x02\x7f\u0000y \x1b[0m",
    "'s 't're've'm'll'd 'S'T'RE 'x 'sd",
]


def main():
    table = {}
    for name, expressions in RULES.items():
        splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
        rule = pre_tokenizers.Sequence(splits)
        rows = []
        for text in TEXTS:
            pieces = [piece for piece, _ in rule.pre_tokenize_str(text)]
            assert "".join(pieces) == text, (name, text, pieces)
            rows.append(" ".join(str(len(piece)) for piece in pieces))
        table[name] = rows
    json.dump({"texts": TEXTS, "rules": table}, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
