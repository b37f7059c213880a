"""The look-up, against a hub of our own on localhost; nothing here reaches the network."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_hub import FakeHub, fake_hub, point_at

from sft_cli.errors import CheckpointError, DataError, ModelError, SftError, disk_error
from sft_cli.plan import hub
from sft_cli.plan.hub_refusals import failed_download, not_at_hand

WHERE = "recipe.yaml:2: model.path"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as found:
        point_at(monkeypatch, found.url, tmp_path)
        yield found


def repo(hub_id: str = "owner/name", revision: str | None = None, kind: Any = "model") -> hub.Repo:
    return hub.Repo(kind, hub_id, revision, WHERE)


def refusal(asked: hub.Repo) -> SftError:
    began = time.monotonic()
    with pytest.raises(ModelError if asked.kind == "model" else DataError) as caught:
        hub.look_up(asked)
    assert time.monotonic() - began < 2
    assert caught.value.exit_code == (2 if asked.kind == "model" else 3)
    assert caught.value.where == WHERE
    assert caught.value.fix
    return caught.value


def silence(asked: hub.Repo) -> str:
    with pytest.raises(hub.Unreachable) as caught:
        hub.look_up(asked)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_what_is_there(the_hub: FakeHub, kind: str) -> None:
    known = getattr(the_hub, kind)("owner/name", {"a.txt": "old"})
    old = known.refs["main"]
    new = known.commit({"a.txt": "new", "b/c.txt": ""}, "v2")
    assert hub.look_up(repo(kind=kind)) == hub.Listing(new, ("a.txt", "b/c.txt"))
    assert hub.look_up(repo(revision=old, kind=kind)) == hub.Listing(old, ("a.txt",))
    assert hub.look_up(repo(revision="v2", kind=kind)).commit == new


@pytest.mark.parametrize("answer", [{}, [], None, {"id": "owner/name", "sha": "0" * 40, "siblings": [5]}])
@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_json_that_is_no_answer_of_a_hub(
    the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, kind: str, answer: Any
) -> None:
    getattr(the_hub, kind)("owner/name")
    monkeypatch.setattr("support.fake_hub._Handler._info", lambda *_: answer)
    assert "its answer is not one of a hub; check HF_ENDPOINT" in silence(repo(kind=kind))


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_refusal_in_plain_words(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make = getattr(the_hub, kind)
    make("owner/name")
    make("owner/closed", gated=True)
    make("owner/private", private=True)
    make("owner/forbidden", status=403)
    assert "has no revision v9" in refusal(repo(revision="v9", kind=kind)).what
    gated = refusal(repo("owner/closed", kind=kind))
    assert "is gated" in gated.what
    assert f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}owner/closed" in str(gated.fix)
    missing = "data set owner/gone" if kind == "dataset" else "owner/gone"
    assert (
        f"the Hugging Face hub has no {missing} that this account can see"
        in refusal(repo("owner/gone", kind=kind)).what
    )
    assert "hf auth login" in str(refusal(repo("owner/private", kind=kind)).fix)
    assert "may not read owner/forbidden" in refusal(repo("owner/forbidden", kind=kind)).what
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrongwrong1")
    wrong = refusal(repo(kind=kind))
    assert "does not accept this account's token" in wrong.what
    assert "hf_wrong" not in str(wrong)


def test_a_token_opens_what_is_its_own(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    the_hub.model("owner/private", {"config.json": "{}"}, private=True)
    the_hub.model("owner/closed", {"config.json": "{}"}, gated=True)
    monkeypatch.setenv("HF_TOKEN", the_hub.token)
    assert hub.look_up(repo("owner/private")).files == ("config.json",)
    assert hub.look_up(repo("owner/closed")).files == ("config.json",)
    assert (hub.download(repo("owner/private"), ["config.json"]) / "config.json").read_text() == "{}"
    assert {header for *_, header in the_hub.requests if header} == {f"Bearer {the_hub.token}"}


@pytest.mark.parametrize(("status", "words"), [(500, "500"), (503, "503"), (429, "429")])
def test_a_failing_server_is_no_answer(the_hub: FakeHub, status: int, words: str) -> None:
    the_hub.model("owner/name", status=status)
    began = time.monotonic()
    assert words in silence(repo())
    assert time.monotonic() - began < 2, "it was asked more than once"


def test_a_server_that_says_nothing_is_given_up(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LOOK_UP_SECONDS", 0.3)
    the_hub.model("owner/name", hangs=True)
    began = time.monotonic()
    assert "can't be reached: " in silence(repo())
    assert time.monotonic() - began < 2


def test_the_deadline_covers_all_of_the_look_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name that takes long to find, or a host with many dead addresses, which the library tries one by one."""
    point_at(monkeypatch, "http://black.hole.invalid", tmp_path)
    monkeypatch.setattr(hub, "LOOK_UP_SECONDS", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **keys: time.sleep(5))
    began = time.monotonic()
    assert "no answer within 0.3 seconds" in silence(repo())
    assert time.monotonic() - began < 2


def test_no_server_answers_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        point_at(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}", tmp_path)
        began = time.monotonic()
        assert "can't be reached" in silence(repo())
    assert time.monotonic() - began < 2


def test_a_login_page_is_no_answer(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_ask", lambda asked: json.loads("<html>"))
    assert "can't be reached" in silence(repo())


def test_offline_says_which_variable(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    the_hub.model("owner/name")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    assert silence(repo(kind="dataset")) == "HF_DATASETS_OFFLINE forbids asking the Hugging Face hub"
    assert hub.look_up(repo()).files == ()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert silence(repo()).startswith("HF_HUB_OFFLINE forbids")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert silence(repo()).startswith("TRANSFORMERS_OFFLINE forbids")


def test_what_is_not_at_hand_says_what_to_do() -> None:
    offline = not_at_hand(hub.Unreachable("HF_HUB_OFFLINE forbids asking"), "model", "owner/name", WHERE)
    assert offline.fix == (
        "Unset HF_HUB_OFFLINE, download it elsewhere with `hf download owner/name`, or give model.path a local folder."
    )
    away = not_at_hand(hub.Unreachable("it is away"), "dataset", "owner/name", WHERE)
    assert away.what == "owner/name is not in the local cache, and it is away"
    assert str(away.fix).startswith("Check the connection, ")
    assert "--repo-type dataset owner/name" in str(away.fix)


def test_a_full_disk_is_no_broken_connection() -> None:
    full = OSError(28, os.strerror(28), "/cache")
    raised = failed_download(full, "model", "owner/name", None, WHERE)
    assert raised is full
    assert isinstance(disk_error(raised), CheckpointError)
    broken = failed_download(ConnectionError("reset\nby peer"), "model", "owner/name", None, WHERE)
    assert isinstance(broken, ModelError)
    assert broken.what == "the download of owner/name broke off: reset"


def test_the_cache_is_asked_by_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point_at(monkeypatch, "http://never.asked.invalid", tmp_path)
    assert hub.cached_folder(repo(), ["config.json"]) is None
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    (snapshot / "a").mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({}))
    (snapshot / "a" / "b.json").write_text(json.dumps({}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    assert hub.cached_folder(repo(), ["absent", "config.json"]) == snapshot
    assert hub.cached_folder(repo(), ["a/b.json"]) == snapshot
    assert hub.cached_folder(repo(revision="v2"), ["config.json"]) is None


def test_what_a_branch_stood_for_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point_at(monkeypatch, "http://never.asked.invalid", tmp_path)
    asked = repo(revision="refs/pr/1", kind="dataset")
    assert hub.cached_commit(asked) is None
    hub.note_commit(asked, COMMIT)
    hub.note_commit(asked, COMMIT)
    assert hub.cached_commit(asked) == COMMIT
    assert hub.cached_commit(repo(kind="dataset")) is None
    assert hub.cached_commit(repo(revision=COMMIT)) == COMMIT
    assert [file.name for file in (tmp_path / "hub").rglob("*") if file.is_file()] == ["1"]


@pytest.mark.parametrize("path", ["gpt2", "owner/name", "owner/Name-1.5_b"])
def test_what_may_be_a_hub_id(path: str) -> None:
    assert hub.is_hub_id(path)


@pytest.mark.parametrize(
    "path", ["a/b/c", "./a", "/a", "a/", "a/b-", "-a/b", "a--b", "a..b", "a b", "x.git", "a" * 97, ""]
)
def test_what_is_no_hub_id(path: str) -> None:
    assert not hub.is_hub_id(path)
