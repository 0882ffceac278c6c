"""Language models: the library's numbers, streams, threads, signals, forks."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import trike
from trike.llama import Llama

#: The model recommends sampling.
GREEDY = {"temperature": 0.0}
STORY = ", there was a little girl named Lily."


def test_generate(tiny):
    pieces = []
    done = tiny.generate("Once upon a time", max_tokens=20, on_text=pieces.append, **GREEDY)
    assert done["text"].startswith(STORY) and "".join(pieces) == done["text"]
    assert done["finish"] == "max_tokens" and len(done["ids"]) == 20
    assert done["prompt_ids"] == tiny.tokenize("Once upon a time")
    # Greedy decoding is deterministic, from ids as from text.
    assert tiny.generate(done["prompt_ids"], max_tokens=20, **GREEDY)["ids"] == done["ids"]
    assert tiny.generate(np.array(done["prompt_ids"]), max_tokens=20, **GREEDY)["ids"] == done["ids"]
    assert [one["text"] for one in tiny.batch(["Once", "Tom"], max_tokens=3, **GREEDY)] == [
        tiny.generate(p, max_tokens=3, **GREEDY)["text"] for p in ("Once", "Tom")
    ]


def test_sampling(tiny):
    def text(**options):
        return tiny.generate("Once", max_tokens=12, **options)["text"]

    assert text(temperature=1.0, seed=1) == text(temperature=1.0, seed=1) != text(temperature=1.0, seed=2)
    assert text(top_k=1, seed=9) == text(**GREEDY)
    assert "girl" not in tiny.generate("Once upon a time", stop="girl", **GREEDY)["text"]
    assert tiny.generate("Once upon a time", stop=["girl"], **GREEDY)["finish"] == "stop"
    done = tiny.generate("Once", max_tokens=3, logprobs=2)
    assert [entry[0] for entry in done["logprobs"]] == done["ids"]
    assert all(len(top) == 2 and top[0][1] >= top[1][1] and logprob <= 0 for _, logprob, top in done["logprobs"])
    assert set(tiny.generate("Once", max_tokens=8, regex="[ab]+")["text"]) <= set("ab")


def test_stream(tiny):
    with tiny.stream("Once upon a time", max_tokens=20, **GREEDY) as stream:
        pieces = list(stream)
    assert len(pieces) > 5 and "".join(pieces) == tiny.generate("Once upon a time", max_tokens=20, **GREEDY)["text"]
    assert stream.result["finish"] == "max_tokens" and next(stream, None) is None
    # One that is left early does not block the model.
    left = tiny.stream("Once upon a time")
    next(left)
    left.close()
    assert left.result is None and next(left, None) is None
    del left
    for _ in tiny.stream("Once upon a time"):
        break
    assert tiny.generate("Tom", max_tokens=1)["finish"] == "max_tokens"


def test_a_stream_is_closed_while_another_thread_waits_for_it(tiny):
    # It may be at its end before it is closed.
    for _ in range(5):
        stream, pieces = tiny.stream("Once upon a time", max_tokens=2000, **GREEDY), []
        reader = threading.Thread(target=lambda: pieces.extend(stream))
        reader.start()
        time.sleep(0.005)
        stream.close()
        reader.join(20)
        assert not reader.is_alive() and next(stream, None) is None
        if stream.result is None:
            break
    else:
        pytest.fail("the stream went on to its end")


def test_tokens(tiny):
    ids = tiny.tokenize("Once upon a time", bos=False)
    assert tiny.detokenize(ids) == "Once upon a time"
    assert bytes(tiny.detokenize_bytes(ids)) == b"Once upon a time"
    assert tiny.tokenize("Once upon a time") == ([tiny.bos] if tiny.bos is not None else []) + ids
    assert tiny.eos and all(0 <= id < tiny.vocab_size for id in ids)
    with pytest.raises(ValueError):
        tiny.detokenize([tiny.vocab_size + 10**6])


def test_logits_predict_the_greedy_text(tiny_path):
    exact = trike.Model(tiny_path, device="cpu", activations="f32", head="stored", threads=1)
    done = exact.generate("Once upon a time", max_tokens=10, kv="f32", **GREEDY)
    logits = exact.logits(done["prompt_ids"] + done["ids"])
    assert logits.dtype == np.float32 and logits.shape == (len(done["prompt_ids"]) + 10, exact.vocab_size)
    at = len(done["prompt_ids"]) - 1
    assert logits[at : at + 10].argmax(axis=1).tolist() == done["ids"]
    assert exact.logits([]).shape == (0, exact.vocab_size)
    assert "f32" in exact.info["activations"]


def test_logits_equal_another_implementation(shared):
    """The logits of a NumPy forward pass of llama2.c's stories260K."""
    golden = np.load(shared / "golden" / "golden_stories260K_numpy.npz")
    model = trike.Model(
        shared / "models" / "stories260K.bin", device="cpu", tokenizer=shared / "tokenizers" / "tok512.bin", head="stored"
    )
    logits = model.logits(golden["ids"].tolist())
    np.testing.assert_allclose(logits, golden["logits"], atol=1e-3)


def test_perplexity(shared):
    model = trike.Model(shared / "models" / "stories260K.bin", device="cpu", tokenizer=shared / "tokenizers" / "tok512.bin")
    text = (shared / "corpora" / "tinystories_sample.txt").read_text()
    seen = []
    score = model.perplexity(text, progress=lambda *step: seen.append(step))
    # By a NumPy forward pass: README of the shared data.
    assert score["perplexity"] == pytest.approx(3.548, abs=2e-3)
    assert score["sequences"] == 5 and seen[-1] == ("scoring", 5, 5)
    assert model.perplexity(text, limit=2, split="stories")["sequences"] == 2


def test_embed(tiny):
    a, b, c = (tiny.embed(text) for text in ("The cat sat.", "The cat sits.", "12 + 7"))
    assert a.dtype == np.float32 and a.shape == (tiny.info["hidden"],)
    assert np.linalg.norm(a) == pytest.approx(1.0, abs=1e-5) and a @ b > a @ c
    np.testing.assert_array_equal(a, tiny.embed(tiny.tokenize("The cat sat.")))
    assert (tiny.embed("The cat sat.", pooling="last") != a).any()
    several = tiny.embed(["The cat sat.", "12 + 7"])
    assert several.shape == (2, tiny.info["hidden"])
    np.testing.assert_array_equal(several[0], a)
    with pytest.raises(TypeError, match=r"expected a text or a list of token ids, got \[3.5\]"):
        tiny.embed([3.5])


def test_names_and_options():
    model = trike.Model("tiny", device="cpu", chat_template="{% for m in messages %}{{ m.content }} {% endfor %}")
    assert model.info["can_chat"]
    answer = model.chat("Once upon a time", max_tokens=4, **GREEDY)
    assert model.detokenize(answer["prompt_ids"]).strip() == "Once upon a time" and len(answer["ids"]) == 4
    with pytest.raises(TypeError, match="unknown option `max_token`; did you mean `max_tokens`?"):
        model.generate("a", max_token=3)
    with pytest.raises(FileNotFoundError, match="tiny, or org/name"):
        trike.Model("tinny")


def test_memory(tiny):
    small, large = tiny.memory(context=16), tiny.memory(context=32)
    assert small["weights"] == large["weights"] > 0 and large["cache"] == 2 * small["cache"]
    assert small["total"] == small["weights"] + small["cache"] + small["scratch"]
    assert tiny.info["weight_bytes"] == small["weights"]


def test_threads_share_a_model(tiny):
    expected = tiny.generate("Once upon a time", max_tokens=15, **GREEDY)["text"]
    texts = []

    def work():
        texts.append(tiny.generate("Once upon a time", max_tokens=15, **GREEDY)["text"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 8


def test_other_threads_run_meanwhile(tiny):
    """The interpreter's lock is free while a model works."""
    ticks = 0
    done = threading.Event()

    def work():
        tiny.generate("Once upon a time", max_tokens=200, seed=1, temperature=1.0)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.0005)
    thread.join()
    assert ticks > 5


@pytest.mark.parametrize("call", ["model.generate(PROMPT, on_text=start)", "for p in model.stream(PROMPT): start(p)", "model.perplexity('Once upon a time. ' * 20000, progress=start)"])
def test_ctrl_c_ends_a_call_within_a_second(tiny_path, call):
    program = f"""
    import signal, sys, time, trike
    # Where the tests run in the background, the shell has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model = trike.Model({str(tiny_path)!r}, device="cpu")
    PROMPT = "Once upon a time"
    began = False
    def start(*_):
        global began
        if not began:
            print("began", flush=True)
            began = True
        time.sleep(0.01)
    try:
        while True:
            {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(model.generate("Tom", max_tokens=1)["finish"], flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "began\n"
    asked = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - asked < 1.0
    assert child.stdout.readline() == "max_tokens\n"
    assert child.wait(timeout=20) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_is_refused_and_arrays_work_there(tiny):
    tensor = trike.TritTensor(np.ones((64, 64), np.int8), np.ones(64, np.float32))
    tensor.matmul(np.ones((300, 64), np.float32))
    child = os.fork()
    if child == 0:
        try:
            tiny.generate("Once", max_tokens=1)
        except RuntimeError as error:
            y = tensor.matmul(np.ones((300, 64), np.float32))
            os._exit(0 if "forked" in str(error) and (y == 64).all() else 1)
        os._exit(2)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0 if hasattr(os, "waitstatus_to_exitcode") else status == 0
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child hangs")


def test_calls_do_not_grow(tiny):
    """1,000 generations and 10,000 calls on arrays leave memory where it was."""
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("skipped: no /proc")
    tensor = trike.TritTensor(np.ones((32, 64), np.int8), np.ones(32, np.float32))
    x = np.ones((1, 64), np.float32)

    def some(generations, calls):
        for _ in range(generations):
            tiny.generate("Once", max_tokens=1)
        for _ in range(calls):
            tensor.matmul(x)

    some(100, 1000)
    before = resident()
    some(1000, 10_000)
    assert resident() - before < 4 * 2**20


def test_llama(tiny_path):
    llama = Llama(tiny_path, n_ctx=128, verbose=False)
    done = llama("Once upon a time", max_tokens=8, temperature=0.0)
    assert done["object"] == "text_completion" and done["choices"][0]["text"].startswith(STORY[:10])
    assert done["choices"][0]["finish_reason"] == "length"
    assert done["usage"]["completion_tokens"] == 8 and done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + 8
    chunks = list(llama.create_completion("Once upon a time", max_tokens=8, temperature=0.0, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == done["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert llama("Once", max_tokens=2, temperature=0.0, echo=True)["choices"][0]["text"].startswith("Once")
    ids = llama.tokenize(b"Once upon", add_bos=False)
    assert llama.detokenize(ids) == b"Once upon"
    logprobs = llama("Once", max_tokens=2, temperature=0.0, logprobs=3)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 2 and len(logprobs["top_logprobs"][0]) == 3
    assert len(llama.embed("a")) == llama.n_embd() and len(llama.embed(["a", "b"])) == 2
    assert llama.create_embedding("a")["data"][0]["embedding"] == llama.embed("a")
    assert llama.n_ctx() == 128 and llama.n_vocab() > 0 and llama.token_eos() >= 0
    with pytest.raises(NotImplementedError):
        llama("a", frequency_penalty=0.5)
    with pytest.raises(TypeError):
        llama("a", no_such_option=1)
    json.dumps(done)


@pytest.fixture(scope="module")
def talking(tiny_path, tmp_path_factory):
    """The bundled model with a chat template: what it says makes no sense, but it says it."""
    import shutil

    path = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(tiny_path, path)
    template = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    (path / "chat_template.jinja").write_text(template)
    return path


def test_chat(talking):
    model = trike.Model(talking, device="cpu")
    assert model.info["can_chat"]
    first = model.chat("Tell me a story.", max_tokens=8, **GREEDY)
    assert model.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=8, **GREEDY)["ids"] == first["ids"]
    assert "user: Tell me a story." in model.detokenize(first["prompt_ids"])
    talk = [("user", "Tell me a story."), ("assistant", first["text"]), ("user", "And then?")]
    second = model.chat(talk, max_tokens=8, **GREEDY)
    assert second["reused_tokens"] > 0
    assert "".join(model.stream_chat(talk, max_tokens=8, **GREEDY)) == second["text"]
    for messages in ([], [{"role": "user"}], [("user", 3)]):
        with pytest.raises((ValueError, TypeError)):
            model.chat(messages)
    llama = Llama(talking)
    options = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8, "temperature": 0.0}
    done = llama.create_chat_completion(**options)
    assert done["object"] == "chat.completion" and done["choices"][0]["message"]["role"] == "assistant"
    chunks = list(llama.create_chat_completion(stream=True, **options))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == done["choices"][0]["message"]["content"]


def test_messages_are_whole(tiny_path, tmp_path):
    """Calls, thoughts, content parts and tools go into the template, and what no template knows is named."""
    import shutil

    path = tmp_path / "model"
    shutil.copytree(tiny_path, path)
    template = (
        "{% for t in tools or [] %}{{ t.name }};{% endfor %}{% for m in messages %}[{{ m.role }}"
        "{% if m.reasoning_content %} ({{ m.reasoning_content }}){% endif %}"
        "{% if m.content is string %} {{ m.content }}{% else %}{% for p in m.content or [] %} {{ p.text }}{% endfor %}{% endif %}"
        "{% for c in m.tool_calls or [] %} {{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% if m.tool_call_id %} {{ m.name }} {{ m.tool_call_id }}{% endif %}]{% endfor %}"
        "{% if add_generation_prompt %}[assistant{% endif %}"
    )
    (path / "chat_template.jinja").write_text(template)
    model = trike.Model(path, device="cpu")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": [1, None]}}}
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "1 +"}, {"type": "text", "text": "2?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "3"},
        {"role": "assistant", "tool_calls": [call], "content": ""},
    ]
    want = (
        'add;[user 1 + 2?][assistant (hm) add{"b": 2, "a": [1, null]}][tool 3 add c1]'
        '[assistant  add{"b": 2, "a": [1, null]}]'
    )
    tools = [{"name": "add"}]
    text = model.apply_chat_template(talk, tools=tools, tokenize=False, add_generation_prompt=False)
    assert text == want
    ids = model.apply_chat_template(talk, tools=tools)
    assert model.detokenize(ids) == want + "[assistant"
    done = model.chat(talk, tools=tools, max_tokens=2, **GREEDY)
    assert done["prompt_ids"] == ids
    assert "".join(model.stream_chat(talk, tools=tools, max_tokens=2, **GREEDY)) == done["text"]
    assert model.apply_chat_template("Hi", tokenize=False) == "[user Hi][assistant"
    assert model.apply_chat_template([("user", "Hi")], tokenize=False) == "[user Hi][assistant"
    for message, words in [
        ({"role": "user", "content": "Hi", "refusal": "no"}, "got refusal"),
        ({"content": "Hi"}, "expected a `role`"),
        ({"role": "user", "content": None}, "`content`: expected a text or parts"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}, "part 1 of `content`"),
        ({"role": "user", "content": "Hi", "tool_calls": [call]}, "got one of the role user"),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}, "`arguments` of call 1"),
        ({"role": "tool", "content": "3", "tool_call_id": 5}, "`tool_call_id`: expected a text, got 5"),
    ]:
        with pytest.raises(ValueError) as raised:
            model.chat([("user", "Hi"), message])
        assert "messages[1]: " in str(raised.value) and words in str(raised.value)
    with pytest.raises(TypeError, match="messages: expected what JSON can hold"):
        model.chat([{"role": "user", "content": b"Hi"}])
    with pytest.raises(TypeError, match=r"messages\[0\]: expected a dict, or a pair"):
        model.chat([5])
