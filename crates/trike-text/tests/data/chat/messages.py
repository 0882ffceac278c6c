"""Renderings of python.jinja by transformers, for messages that are more than a role and a text.

    python messages.py > messages.json
"""

import json
import pathlib
import sys

from templates import new_tokenizer

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": [1, None]}}}
CONVERSATIONS = {
    "text": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
    "tools": [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "3"},
    ],
    "thoughts": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "reasoning_content": "hm", "content": "!"},
        {"role": "assistant", "content": "!", "reasoning": "so"},
        {"role": "assistant", "content": "!", "thinking": "then", "reasoning_content": None},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": []},
    ],
}


def main():
    template = pathlib.Path(__file__).with_name("python.jinja").read_text()
    tokenizer = new_tokenizer()
    goldens = []
    for name, messages in CONVERSATIONS.items():
        for ends in ("\n", "\r\n", "\r"):
            text = template.replace("\n", ends)
            rendered = tokenizer.apply_chat_template(
                messages, chat_template=text, add_generation_prompt=True, tokenize=False
            )
            goldens.append({"name": name, "ends": ends, "messages": messages, "rendered": rendered})
    json.dump(goldens, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
