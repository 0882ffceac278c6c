"""`Llama`, in the shape of llama-cpp-python: its constructor, methods and results.

Options that Trike has no counterpart for are accepted and ignored if they do not change the text (`n_batch`, `verbose`), and refused
with NotImplementedError if they do (`lora_path`, `logit_bias`).
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from trike._hub import PathLike
from trike._models import Model

__all__ = ["Llama"]

#: Options of a completion, with llama-cpp-python's defaults.
_DEFAULTS = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "top_k": 40, "repeat_penalty": 1.0}
_IGNORED = {"user", "model"}
#: Options that would change the text, with the values that do not.
_REFUSED = {
    "frequency_penalty": (None, 0, 0.0),
    "grammar": (None,),
    "logit_bias": (None, {}),
    "mirostat_mode": (None, 0),
    "presence_penalty": (None, 0, 0.0),
    "suffix": (None, ""),
    "tfs_z": (None, 1.0),
    "tools": (None, []),
    "typical_p": (None, 1.0),
}
_FINISH = {"eos": "stop", "stop": "stop", "max_tokens": "length", "context": "length", "cancelled": "cancelled"}


class Llama:
    """A model with the interface of llama-cpp-python.

    `n_ctx` is the context in tokens (0 is the model's), `n_threads` the threads (None is one per physical core), `n_gpu_layers` other
    than 0 takes a GPU if there is one.
    """

    def __init__(
        self,
        model_path: PathLike,
        *,
        n_gpu_layers: int = 0,
        n_ctx: int = 0,
        n_threads: Optional[int] = None,
        seed: int = 0xFFFFFFFF,
        embedding: bool = False,
        verbose: bool = True,
        lora_path: Optional[str] = None,
        **ignored: Any,
    ) -> None:
        if lora_path is not None:
            raise NotImplementedError("lora_path: merge the adapter into the model first")
        self._model = Model(model_path, device="auto" if n_gpu_layers else "cpu", threads=n_threads or 0)
        self._context = n_ctx or self._model.context
        self._seed = None if seed == 0xFFFFFFFF else seed
        self.model_path = str(model_path)

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: Optional[str] = None, **options: Any) -> "Llama":
        """Loads a model of the hub, as `org/name`, or one of its GGUF files."""
        return cls(repo_id if filename is None else f"{repo_id}:{filename}", **options)

    def n_ctx(self) -> int:
        """The context in tokens."""
        return self._context

    def n_vocab(self) -> int:
        """Rows of the embedding."""
        return self._model.vocab_size

    def n_embd(self) -> int:
        """Width of an embedding."""
        return self._model.info["hidden"]

    def token_bos(self) -> int:
        """The beginning-of-sequence token, or -1."""
        bos = self._model.bos
        return -1 if bos is None else bos

    def token_eos(self) -> int:
        """The first token that ends a text, or -1."""
        return next(iter(self._model.eos), -1)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> List[int]:
        """The tokens of UTF-8 bytes."""
        if not isinstance(text, bytes):
            raise TypeError(f"text: expected bytes, got {type(text).__name__}")
        ids = self._model.tokenize(text.decode("utf-8"), bos=False)
        bos = self._model.bos
        return [bos, *ids] if add_bos and bos is not None else ids

    def detokenize(self, tokens: Sequence[int], prev_tokens: Optional[Sequence[int]] = None, special: bool = False) -> bytes:
        """The bytes of tokens."""
        return bytes(self._model.detokenize_bytes(list(tokens)))

    def create_embedding(self, input: Union[str, List[str]], model: Optional[str] = None) -> Dict[str, Any]:
        """Embeddings as OpenAI's API returns them."""
        texts = [input] if isinstance(input, str) else list(input)
        data = [
            {"object": "embedding", "index": at, "embedding": self._model.embed(text).tolist()} for at, text in enumerate(texts)
        ]
        used = sum(len(self._model.tokenize(text)) for text in texts)
        return {
            "object": "list",
            "data": data,
            "model": model or self.model_path,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }

    def embed(self, input: Union[str, List[str]], normalize: bool = True) -> Union[List[float], List[List[float]]]:
        """The embedding of a text, or of each of several. They have a length of one in any case."""
        if isinstance(input, str):
            return self._model.embed(input).tolist()
        return [self._model.embed(text).tolist() for text in input]

    def create_completion(
        self,
        prompt: Union[str, List[int]],
        max_tokens: Optional[int] = 16,
        stream: bool = False,
        stop: Union[None, str, List[str]] = None,
        seed: Optional[int] = None,
        logprobs: Optional[int] = None,
        echo: bool = False,
        **options: Any,
    ) -> Union[Dict[str, Any], Iterator[Dict[str, Any]]]:
        """Continues a prompt; with `stream`, an iterator over chunks."""
        wanted = self._options(max_tokens, stop, seed, options)
        head = self._head("cmpl", "text_completion")
        if stream:
            return self._chunks(head, self._model.stream(prompt, **wanted), _text_choice)
        done = self._model.generate(prompt, logprobs=logprobs, **wanted)
        choice = _text_choice(done["text"], _FINISH[done["finish"]])
        if echo:
            before = prompt if isinstance(prompt, str) else self._model.detokenize(prompt)
            choice["text"] = before + choice["text"]
        if logprobs is not None:
            choice["logprobs"] = self._logprobs(done)
        return {**head, "choices": [choice], "usage": _usage(done)}

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: List[Mapping[str, Any]],
        max_tokens: Optional[int] = None,
        stream: bool = False,
        stop: Union[None, str, List[str]] = None,
        seed: Optional[int] = None,
        response_format: Optional[Mapping[str, Any]] = None,
        **options: Any,
    ) -> Union[Dict[str, Any], Iterator[Dict[str, Any]]]:
        """Answers a conversation; with `stream`, an iterator over chunks. `response_format` may be `{"type": "json_object"}` with
        an optional `schema`."""
        wanted = self._options(max_tokens, stop, seed, options)
        if response_format is not None and response_format.get("type") == "json_object":
            wanted["json_schema"] = response_format.get("schema", {"type": "object"})
        if stream:
            head = self._head("chatcmpl", "chat.completion.chunk")
            return self._chunks(head, self._model.stream_chat(messages, **wanted), _delta_choice, first=True)
        done = self._model.chat(messages, **wanted)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": done["text"]},
            "logprobs": None,
            "finish_reason": _FINISH[done["finish"]],
        }
        return {**self._head("chatcmpl", "chat.completion"), "choices": [choice], "usage": _usage(done)}

    def _options(self, max_tokens: Optional[int], stop: Any, seed: Optional[int], options: Dict[str, Any]) -> Dict[str, Any]:
        for name, neutral in _REFUSED.items():
            if options.get(name) not in neutral:
                raise NotImplementedError(f"{name}: expected {neutral[-1]!r}, got {options[name]!r}")
        unknown = set(options) - set(_DEFAULTS) - _IGNORED - set(_REFUSED)
        if unknown:
            raise TypeError(f"unexpected options: {', '.join(sorted(unknown))}")
        given = {**_DEFAULTS, **{name: value for name, value in options.items() if name in _DEFAULTS and value is not None}}
        return {
            # As there, no limit or a negative one is the context.
            "max_tokens": max_tokens if max_tokens is not None and max_tokens > 0 else None,
            "temperature": given["temperature"],
            "top_p": given["top_p"],
            "min_p": given["min_p"],
            "top_k": max(given["top_k"], 0),
            "repetition_penalty": given["repeat_penalty"],
            "seed": self._seed if seed is None else seed,
            "stop": [] if stop is None else stop,
            "context": self._context,
        }

    def _head(self, kind: str, what: str) -> Dict[str, Any]:
        return {"id": f"{kind}-{uuid.uuid4()}", "object": what, "created": int(time.time()), "model": self.model_path}

    def _chunks(self, head: Dict[str, Any], stream: Any, choice: Any, first: bool = False) -> Iterator[Dict[str, Any]]:
        with stream:
            if first:
                start = {"index": 0, "delta": {"role": "assistant"}, "logprobs": None, "finish_reason": None}
                yield {**head, "choices": [start]}
            for piece in stream:
                yield {**head, "choices": [choice(piece, None)]}
            yield {**head, "choices": [choice("", _FINISH[stream.result["finish"]])]}

    def _logprobs(self, done: Dict[str, Any]) -> Dict[str, Any]:
        name = lambda token: bytes(self._model.detokenize_bytes([token])).decode("utf-8", "replace")  # noqa: E731
        entries = done["logprobs"]
        return {
            "tokens": [name(token) for token, _, _ in entries],
            "token_logprobs": [logprob for _, logprob, _ in entries],
            "top_logprobs": [{name(token): logprob for token, logprob in top} for _, _, top in entries],
        }


def _text_choice(text: str, finish: Optional[str]) -> Dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}


def _delta_choice(text: str, finish: Optional[str]) -> Dict[str, Any]:
    return {"index": 0, "delta": {"content": text} if text else {}, "logprobs": None, "finish_reason": finish}


def _usage(done: Dict[str, Any]) -> Dict[str, int]:
    prompt, new = len(done["prompt_ids"]), len(done["ids"])
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
