"""Models by their names on the hub, which is a server of the test."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import trike

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """`trike/tiny` and nothing else."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, content=b"", headers=()):
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        self.server.asked.append(f"{self.command} {self.path}")
        if self.path == "/api/models/trike/tiny/revision/main":
            files = [{"rfilename": name} for name in self.server.files]
            return self.answer(200, json.dumps({"sha": COMMIT, "siblings": files}).encode())
        content = self.server.files.get(self.path.split(f"/resolve/{COMMIT}/")[-1])
        if content is None:
            return self.answer(404, b"no", [("X-Error-Code", "RepoNotFound")])
        return self.answer(200, content, [("ETag", f'"{hashlib.sha256(content).hexdigest()}"')])

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tiny_path, tmp_path, monkeypatch):
    server = Hub({path.name: path.read_bytes() for path in tiny_path.iterdir()})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.shutdown()
    server.server_close()


def test_a_model_is_downloaded_once(hub, tiny, tmp_path, monkeypatch):
    steps = []
    model = trike.Model("trike/tiny", device="cpu", progress=lambda *step: steps.append(step))
    sampling = {"max_tokens": 5, "temperature": 0.0}
    assert model.generate("Once", **sampling)["text"] == tiny.generate("Once", **sampling)["text"]
    downloads = [step for step in steps if step[0] == "downloading"]
    assert downloads and downloads[-1][1] == downloads[-1][2] > 600_000
    snapshot = tmp_path / "cache" / "models--trike--tiny" / "snapshots" / COMMIT
    assert (snapshot / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    # From here on nothing is asked, offline or not.
    asked = len(hub.asked)
    for name in ("trike/tiny", "trike/tiny@main", f"trike/tiny@{COMMIT}"):
        assert trike.inspect(name, progress=False)["model"]["layers"] == model.info["layers"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trike.inspect("trike/tiny", progress=False)
    assert len(hub.asked) == asked


def test_what_is_missing_is_named(hub, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no such model, or it is private"):
        trike.Model("trike/other")
    with pytest.raises(ValueError, match="is not a model name"):
        trike.Model("trike/a--b")
    hub.files["model.safetensors"] = b""
    hub.files.pop("config.json")
    with pytest.raises(trike.ModelError, match="it has neither config.json"):
        trike.Model("trike/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match="check the connection"):
        trike.Model("trike/tiny")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set: unset it"):
        trike.Model("trike/tiny")
