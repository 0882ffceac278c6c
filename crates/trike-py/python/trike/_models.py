"""Language models."""

from __future__ import annotations

import json
import operator
import os
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from trike import _trike
from trike._hub import PathLike, resolve

Prompt = Union[str, Sequence[int]]
Messages = Union[str, Iterable[Union[Mapping[str, Any], Tuple[str, str]]]]
Tools = Optional[Sequence[Mapping[str, Any]]]


@dataclass
class Sampling:
    """Options of a generation; None is the model's own recommendation, or greedy decoding."""

    max_tokens: Optional[int] = None
    temperature: Optional[float] = None
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    seed: Optional[int] = None
    stop: List[str] = field(default_factory=list)
    kv: Optional[str] = None
    context: Optional[int] = None
    window: Optional[int] = None
    logprobs: Optional[int] = None
    json_schema: Any = None
    regex: Optional[str] = None
    grammar: Optional[str] = None

    def __post_init__(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            self.json_schema = json.dumps(self.json_schema)


def _sampling(options: Mapping[str, Any]) -> Sampling:
    """The options of a call; an unknown one raises TypeError with the nearest name."""
    known = [option.name for option in fields(Sampling)]
    for name in options:
        if name not in known:
            nearest = get_close_matches(name, known, 1)
            hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
            raise TypeError(f"unknown option `{name}`{hint} (options: {', '.join(known)})")
    return Sampling(**options)


def _template(given: PathLike) -> str:
    """The text of a chat template. A text with Jinja's delimiters is itself the template."""
    name = os.fspath(given)
    return name if "{%" in name or "{{" in name else Path(name).read_text(encoding="utf-8")


def messages_json(messages: Messages) -> str:
    """Messages in JSON, which the library checks: a text is one message of the user, a pair a role and a text."""
    if isinstance(messages, str):
        messages = [("user", messages)]
    result = []
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping):
            try:
                role, content = message
            except (TypeError, ValueError) as wrong:
                raise TypeError(f"messages[{at}]: expected a dict, or a pair of role and content, got {message!r}") from wrong
            message = {"role": role, "content": content}
        result.append(dict(message))
    return _json("messages", result)


def _tools_json(tools: Tools) -> Optional[str]:
    return _json("tools", [dict(tool) for tool in tools]) if tools else None


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as wrong:
        raise TypeError(f"{name}: expected what JSON can hold: {wrong}") from wrong


class Model(_trike.Model):
    """A language model: `Model(path_or_name, device="auto")`.

    The model is a directory in HuggingFace's layout, a GGUF file, a llama2.c checkpoint, `tiny` for the bundled model, or
    `org/name[@revision][:file]` on the hub, which is downloaded if it is not in the cache. `device` is `auto` (a GPU if this build reaches one, else the CPU), `cpu`, or a name of `trike.devices()`; `threads` is
    0 for one per physical core; `activations` of ternary layers are `auto`, `int8`, `int16` or `f32` (exact); `head` is the LM head's
    precision, `auto`, `stored` or `int8`. `chat_template` is the text of a template, or the path of one, in place of the model's own.

    Calls from several threads run one after another. Ctrl-C ends a call. After a fork, the model works in the parent only.
    """

    def __new__(
        cls,
        model: PathLike,
        *,
        device: str = "auto",
        threads: int = 0,
        activations: str = "auto",
        head: str = "auto",
        tokenizer: Optional[PathLike] = None,
        chat_template: Optional[PathLike] = None,
        context: Optional[int] = None,
        progress: Optional[Callable[[str, int, int], object]] = None,
    ) -> "Model":
        return super().__new__(
            cls,
            resolve(model, progress),
            device=device,
            threads=threads,
            activations=activations,
            head=head,
            tokenizer=None if tokenizer is None else Path(os.fspath(tokenizer)),
            chat_template=None if chat_template is None else _template(chat_template),
            context=context,
            progress=progress,
        )

    def generate(self, prompt: Prompt, *, on_text: Optional[Callable[[str], object]] = None, **options: Any) -> dict:
        """Continues a prompt, a text or token ids. `on_text` is called with each piece of new text; the options are those of
        `Sampling`.

        Returns a dict with `text`, `ids`, `prompt_ids`, `finish` (`eos`, `stop`, `max_tokens`, `context` or `cancelled`), seconds,
        `tokens_per_second`, and `logprobs` as (id, logprob, top).
        """
        return self._generate(_prompt(prompt), _sampling(options), on_text)

    def stream(self, prompt: Prompt, **options: Any) -> _trike.Stream:
        """As `generate`, as an iterator over the pieces of text, whose `result` has the dict at the end."""
        return self._stream(_prompt(prompt), _sampling(options))

    def batch(self, prompts: Iterable[Prompt], **options: Any) -> List[dict]:
        """`generate` for each prompt, one after another."""
        return [self.generate(prompt, **options) for prompt in prompts]

    def embed(self, text: Union[Prompt, Sequence[str]], pooling: str = "mean") -> NDArray[np.float32]:
        """The embedding of a text or of token ids: f32 (hidden,), of length one; of several texts: (texts, hidden). `pooling` is
        `mean`, or `last` for the last token."""
        if not isinstance(text, str) and len(text) > 0 and all(isinstance(item, str) for item in text):
            return np.stack([self._embed(item, pooling) for item in text])
        return self._embed(_prompt(text), pooling)

    def chat(
        self,
        messages: Messages,
        *,
        tools: Tools = None,
        on_text: Optional[Callable[[str], object]] = None,
        **options: Any,
    ) -> dict:
        """Answers a conversation: a text, or messages as dicts with `role` and `content`, and for templates that know them
        `tool_calls`, `reasoning_content`, `tool_call_id` and `name`; a content may be a list of parts with texts, or None beside calls.
        `tools` are the functions that the template shows the model, as dicts. The oldest turns are dropped when they do not fit. What
        the model has read in the call before is not read again. Returns what `generate` returns."""
        return self._chat(messages_json(messages), _tools_json(tools), _sampling(options), on_text)

    def stream_chat(self, messages: Messages, *, tools: Tools = None, **options: Any) -> _trike.Stream:
        """As `chat`, as an iterator."""
        return self._stream_chat(messages_json(messages), _tools_json(tools), _sampling(options))

    def apply_chat_template(
        self,
        messages: Messages,
        *,
        tools: Tools = None,
        add_generation_prompt: bool = True,
        tokenize: bool = True,
    ) -> Union[str, List[int]]:
        """The prompt of a conversation in the model's own template, as token ids or as text. What a message says is never a special
        token of the ids."""
        how = (messages_json(messages), _tools_json(tools), add_generation_prompt)
        return self._chat_ids(*how) if tokenize else self._rendered(*how)


def _prompt(prompt: Prompt) -> Union[str, List[int]]:
    if isinstance(prompt, str):
        return prompt
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as wrong:
        raise TypeError(f"expected a text or a list of token ids, got {prompt!r}") from wrong
