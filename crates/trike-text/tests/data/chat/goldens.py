"""Makes golden.json: prompts that the transformers package renders with the templates in this folder.

    pip install transformers jinja2
    python goldens.py > golden.json
"""

import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
TEMPLATES = {
    "chatml": {"eos_token": "<|im_end|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "bitnet": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    "features": {"bos_token": "<s>", "eos_token": "</s>"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather & \"more\" <b>here</b>, 10 °C.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
                "required": ["city"],
            },
        },
    }
]


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = {
    "one": [message("user", "Hello, who are you?")],
    "system": [message("system", "Be brief.\nBe kind."), message("user", "  Why is the sky blue? \n")],
    "turns": [
        message("system", "You answer in rhyme."),
        message("user", "Name a colour"),
        message("assistant", "<think>\nA colour.\n</think>\n\nBlue, it's true."),
        message("user", "And \"another\" one? <b>&amp;</b> \\ 'x'"),
        message("assistant", "Red,\n\nI said.\t"),
        message("user", "Спасибо, 谢谢, शुक्रिया, شكرا \U0001F468\u200D\U0001F469\u200D\U0001F467 e\u0301"),
    ],
    "answered": [message("user", "{{ bos_token }} {% if %}"), message("assistant", "  ok  ")],
    "empty": [message("user", ""), message("assistant", ""), message("user", " \n ")],
}


def main():
    goldens = []
    for template, tokens in TEMPLATES.items():
        source = (HERE / f"{template}.jinja").read_text()
        for name, messages in CONVERSATIONS.items():
            for add_generation_prompt in (False, True):
                options = {}
                if template == "features" and add_generation_prompt:
                    options = {"tools": TOOLS, "enable_thinking": False}
                rendered, _ = render_jinja_template(
                    [messages],
                    chat_template=source,
                    add_generation_prompt=add_generation_prompt,
                    **options,
                    **tokens,
                )
                goldens.append(
                    {
                        "template": template,
                        "conversation": name,
                        "tokens": tokens,
                        "messages": messages,
                        "add_generation_prompt": add_generation_prompt,
                        "tools": json.dumps(options["tools"], ensure_ascii=False) if options else None,
                        "rendered": rendered[0],
                    }
                )
    json.dump(goldens, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
