"""What transformers makes of a folder of published chat templates, for the test that compares Trike with it.

    pip install 'transformers==5.*' jinja2
    python templates.py FOLDER
    TRIKE_TEMPLATES=FOLDER cargo test -p trike-text --test it templates -- --nocapture

Renders every FOLDER/templates/*.jinja for each conversation below, and writes FOLDER/expected.json. The templates themselves
are other people's work and stay out of the repository.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
NOW = datetime.datetime(2026, 1, 5, 14, 7, 9)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather \"now\" & <b>here</b>, 10 °C.\nIn two lines.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "A city"},
                    "days": {"type": "integer", "default": 3, "minimum": 0.5},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "where": {"type": "array", "items": {"type": "number"}},
                    "more": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": []},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "time", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}},
    },
]


def text(role, content):
    return {"role": role, "content": content}


def call(index, name, arguments):
    return {"id": f"call{index:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(index, name, content):
    return {"role": "tool", "tool_call_id": f"call{index:05}", "name": name, "content": content}


CONVERSATIONS = [
    {"name": "one", "messages": [text("user", "Hello, who are you?")]},
    {"name": "system", "messages": [text("system", "Be brief.\nBe kind."), text("user", "Why is the sky blue?")]},
    {
        "name": "turns",
        "messages": [
            text("system", "You answer in rhyme."),
            text("user", "Name a colour"),
            text("assistant", "<think>\nA colour.\n</think>\n\nBlue, it's true."),
            text("user", "Another one"),
            text("assistant", "Red, I said."),
            text("user", "And a third?"),
        ],
    },
    {"name": "tools", "messages": [text("system", "Be brief."), text("user", "How warm is it?")], "tools": TOOLS},
    {
        "name": "call",
        "messages": [
            text("user", "How warm is it in Bern?"),
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call(1, "weather", {"city": "Bern", "days": 1, "where": [46.9, 7], "more": {"wind": True}})],
            },
            answer(1, "weather", "{\"degrees\": 21.5}"),
        ],
        "tools": TOOLS,
    },
    {
        "name": "parallel",
        "messages": [
            text("user", "How warm is it in Bern, and how late?"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call(1, "weather", {"city": "Bern", "unit": None}), call(2, "time", {})],
            },
            answer(1, "weather", "21.5"),
            answer(2, "time", "14:07"),
            text("assistant", "It is 21.5 °C, at 14:07."),
            text("user", "Thanks!"),
        ],
        "tools": TOOLS,
    },
    {
        "name": "strings",
        "messages": [
            text("user", "How late is it?"),
            {"role": "assistant", "content": None, "tool_calls": [call(7, "time", "{\"zone\": \"UTC\"}")]},
            answer(7, "time", "14:07"),
            {"role": "assistant", "content": "Seven past two.", "refusal": None},
        ],
        "add_generation_prompt": False,
    },
    {
        "name": "thoughts",
        "messages": [
            text("user", "2 + 2?"),
            {"role": "assistant", "content": "4", "reasoning_content": "Two and two\nare four."},
            text("user", "And 3 more?"),
            {"role": "assistant", "content": "7", "reasoning": "4 + 3"},
        ],
        "add_generation_prompt": False,
    },
    {
        "name": "parts",
        "messages": [
            text("system", [{"type": "text", "text": "Be brief."}]),
            text("user", [{"type": "text", "text": "Look: "}, {"type": "text", "text": "a bird."}]),
        ],
    },
    {
        "name": "answered",
        "messages": [text("user", "Say {{ bos_token }} {% if %}"), text("assistant", "  To be continued ")],
        "add_generation_prompt": False,
    },
    {
        "name": "edges",
        "messages": [
            text("system", ""),
            text("user", " \n\tСпасибо, 谢谢, शुक्रिया \U0001F468\u200D\U0001F469\u200D\U0001F467 e\u0301 <|x|>\r\n\u00a0 "),
            text("assistant", "\n\n\"'\\ <b>&amp;</b> \u2028\u0085\x7f\n"),
            text("user", ""),
        ],
        "extra": {"enable_thinking": False},
    },
]


class Clock(datetime.datetime):
    """`strftime_now` shows one moment."""

    @classmethod
    def now(cls, tz=None):
        return NOW


def render(tokenizer, source, conversation):
    try:
        rendered = tokenizer.apply_chat_template(
            conversation["messages"],
            chat_template=source,
            tools=conversation.get("tools"),
            add_generation_prompt=conversation.get("add_generation_prompt", True),
            tokenize=False,
            **conversation.get("extra", {}),
        )
    except Exception as error:
        # `raise_exception` raises just this class, the language its subclasses.
        kind = "refused" if type(error) is jinja2.exceptions.TemplateError else "error"
        return {kind: str(error) if kind == "refused" else f"{type(error).__name__}: {error}"}
    return {"text": rendered}


def new_tokenizer():
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=empty, **TOKENS)


def main():
    folder = pathlib.Path(sys.argv[1])
    chat_template_utils.datetime = Clock
    tokenizer = new_tokenizer()
    templates = {}
    for path in sorted(folder.glob("templates/*.jinja")):
        # As the package reads them: bytes, and line ends as they are.
        source = path.read_bytes().decode()
        templates[path.name] = [render(tokenizer, source, conversation) for conversation in CONVERSATIONS]
    expected = {
        "made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
        "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()),
        "tokens": tokenizer.special_tokens_map,
        "conversations": CONVERSATIONS,
        "templates": templates,
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    answers = [answer for row in templates.values() for answer in row]
    counts = {kind: sum(kind in answer for answer in answers) for kind in ("text", "refused", "error")}
    print(f"{len(templates)} templates by {len(CONVERSATIONS)} conversations: {counts}")


if __name__ == "__main__":
    main()
