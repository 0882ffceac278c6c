"""A conversation. The model in the repository cannot chat: then a story is continued."""

import sys

from _common import model_path

import trike

model = trike.Model(model_path())
messages = []
while model.info["can_chat"] and (line := input("> ") if sys.stdin.isatty() else ""):
    messages.append({"role": "user", "content": line})
    answer = model.chat(messages, on_text=lambda piece: print(piece, end="", flush=True))
    print()
    messages.append({"role": "assistant", "content": answer["text"]})
if not model.info["can_chat"]:
    print(model.generate("One day, Tom and Lily", max_tokens=60, temperature=0.8, seed=1)["text"])
