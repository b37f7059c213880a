"""Against a hub of our own on localhost; nothing here reaches the network."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan import hub

WHERE = "recipe.yaml:2: model.path"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """Answers with the error that the model's name asks for."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        for name, status, code in (
            ("gated", 403, "GatedRepo"),
            ("gone", 404, "RepoNotFound"),
            ("unrevised", 404, "RevisionNotFound"),
            ("broken", 500, ""),
        ):
            if f"/owner/{name}" in self.path:
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        raise AssertionError(f"unexpected request {self.path}")

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the tests' output clean."""


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path


def use_endpoint(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    use_endpoint(monkeypatch, server.server_port)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def refusal(hub_id: str, revision: str | None = None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        hub.download(hub_id, revision, hub.TOKENIZER_PATTERNS, WHERE)
    assert caught.value.where == WHERE
    assert caught.value.fix
    return caught.value


@pytest.mark.usefixtures("fake_hub")
@pytest.mark.parametrize(
    ("hub_id", "what", "fix"),
    [
        ("owner/gated", "gated", "https://huggingface.co/owner/gated"),
        ("owner/gone", "has no owner/gone", "Check the spelling"),
        ("owner/unrevised", "no revision v9", "model.revision"),
        ("owner/broken", "can't be reached", "Check the connection"),
    ],
)
def test_a_refusal_in_plain_words(hub_id: str, what: str, fix: str) -> None:
    error = refusal(hub_id, "v9")
    assert what in error.what
    assert fix in str(error.fix)


def test_no_server_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        use_endpoint(monkeypatch, unused.getsockname()[1])
        began = time.monotonic()
        assert "can't be reached" in refusal("owner/any").what
    assert time.monotonic() - began < 5


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LOOK_UP_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_endpoint(monkeypatch, silent.getsockname()[1])
        began = time.monotonic()
        assert "can't be reached" in refusal("owner/any").what
    assert time.monotonic() - began < 3


def test_offline_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal("owner/any").what


def test_the_cache_is_asked_by_revision(empty_cache: Path) -> None:
    assert hub.cached_folder("owner/model", None, ["config.json"]) is None
    repository = empty_cache / "models--owner--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    assert hub.cached_folder("owner/model", None, ["absent", "config.json"]) == snapshot
    assert hub.cached_folder("owner/model", "v2", ["config.json"]) is None


@pytest.mark.parametrize("path", ["gpt2", "owner/name", "owner/Name-1.5_b"])
def test_what_may_be_a_hub_id(path: str) -> None:
    assert hub.is_hub_id(path)


@pytest.mark.parametrize(
    "path", ["a/b/c", "./a", "/a", "a/", "a/b-", "-a/b", "a--b", "a..b", "a b", "x.git", "a" * 97, ""]
)
def test_what_is_no_hub_id(path: str) -> None:
    assert not hub.is_hub_id(path)
