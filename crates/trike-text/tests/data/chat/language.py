"""What transformers makes of each template of language.txt: its text, or null for an error.

    pip install 'transformers==5.*' jinja2
    python language.py > language.json
"""

import json
import pathlib
import sys

from templates import Clock, new_tokenizer
from transformers.utils import chat_template_utils

MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def main():
    chat_template_utils.datetime = Clock
    tokenizer = new_tokenizer()
    answers = []
    for line in pathlib.Path(__file__).with_name("language.txt").read_text().splitlines():
        if line.startswith("## "):
            continue
        source = line.replace("⏎", "\n")
        try:
            text = tokenizer.apply_chat_template(MESSAGES, chat_template=source, tokenize=False)
        except Exception as error:
            text = None
            print(f"{source!r}: {type(error).__name__}: {error}", file=sys.stderr)
        answers.append(text)
    print(json.dumps(answers, indent=0))


if __name__ == "__main__":
    main()
