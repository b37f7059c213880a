"""Data sets from a hub: pinned to a commit, read once, found again without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_hub import FakeHub, FakeRepo, fake_hub, point_at

from sft_cli.data.hub_copies import copies
from sft_cli.data.pinning import note_pins, pin_sources
from sft_cli.data.prepare import PreparedData, prepare
from sft_cli.data.sources import is_hub, open_source
from sft_cli.data.stream.rows import Stream
from sft_cli.errors import DataError
from sft_cli.plan import hub
from sft_cli.plan.plan import Plan
from sft_cli.recipe.places import Place, Places
from sft_cli.recipe.schema import SourceSection

CARD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train.jsonl}
  - {split: test, path: data/test.jsonl}
- config_name: small
  data_files:
  - {split: train, path: data/small.jsonl}
---
"""


def lines(*questions: str) -> str:
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}] for text in questions]
    return "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)


FILES: dict[str, str | bytes] = {
    "README.md": CARD,
    "data/train.jsonl": lines("one", "two", "three"),
    "data/test.jsonl": lines("four"),
    "data/small.jsonl": lines("five", "six"),
}


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as found:
        point_at(monkeypatch, found.url, tmp_path / "home")
        yield found


@pytest.fixture
def chats(the_hub: FakeHub) -> FakeRepo:
    return the_hub.dataset("owner/Some-Chats", FILES)


def questions(**keys: Any) -> list[str]:
    source = SourceSection(**{"path": "owner/Some-Chats", **keys})
    return [row.value["messages"][0]["content"] for row in open_source(source, Path())()]


def refusal(**keys: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        questions(**keys)
    assert caught.value.exit_code == 3
    assert caught.value.where
    assert caught.value.fix
    return caught.value


def prepared(plan: Plan) -> tuple[Plan, PreparedData]:
    """What the command line does."""
    pinned = pin_sources(plan, progress=True)
    data = prepare(pinned, progress=False)
    note_pins(plan, pinned)
    return pinned, data


def test_subsets_and_splits(chats: FakeRepo, the_hub: FakeHub) -> None:
    assert questions() == ["one", "two", "three"]
    assert questions(split="test") == ["four"]
    assert questions(split="train[1:]+test") == ["two", "three", "four"]
    assert questions(split="all") == ["one", "two", "three", "four"]
    assert questions(subset="small") == ["five", "six"]
    (row, *_) = open_source(SourceSection(path="owner/Some-Chats", split="test"), Path())()
    assert row.place == "owner/Some-Chats[test]:1"


def test_what_is_not_there_is_told_before_any_row_is_downloaded(chats: FakeRepo, the_hub: FakeHub) -> None:
    wrong = refusal(subset="smal")
    assert (wrong.what, wrong.fix) == ("no subset smal", "Set the source's subset to one of: default, small.")
    wrong = refusal(split="train_sft")
    assert (wrong.what, wrong.fix) == ("no split train_sft", "Set the source's split to one of: train, test.")
    for split in ("train[:x]", "train[:200%]", "+"):
        assert f"the split {split} can't be read" in refusal(split=split).what
    wrong = refusal(subset="small", split="test")
    assert (wrong.what, wrong.fix) == ("no split test in subset small", "Set the source's split to one of: train.")
    assert "has no revision v9" in refusal(revision="v9").what
    assert "no data set owner/gone that this account can see" in refusal(path="owner/gone").what
    assert the_hub.downloaded() == ["README.md"]


def test_several_subsets_and_none_is_the_default(the_hub: FakeHub) -> None:
    the_hub.dataset("owner/Some-Chats", {**FILES, "README.md": CARD.replace("default", "large")})
    error = refusal()
    assert error.what == "the data set has several subsets"
    assert error.fix == "Set the source's subset to one of: large, small."
    assert questions(subset="large") == ["one", "two", "three"]


def test_what_can_not_be_read(the_hub: FakeHub) -> None:
    the_hub.dataset("owner/empty", {"README.md": "none"})
    assert "no files that can be read" in refusal(path="owner/empty").what
    the_hub.dataset("owner/script", {"script.py": "raise SystemExit"})
    assert "scripts are no longer supported" in refusal(path="owner/script").what
    the_hub.dataset("owner/broken", {"train.jsonl": "{broken"})
    assert "can't be read" in refusal(path="owner/broken").what


def test_closed_doors(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    the_hub.dataset("owner/closed", FILES, gated=True)
    the_hub.dataset("owner/private", FILES, private=True)
    gated = refusal(path="owner/closed")
    assert "is gated" in gated.what
    assert "https://huggingface.co/datasets/owner/closed" in str(gated.fix)
    assert "no data set owner/private that this account can see" in refusal(path="owner/private").what
    monkeypatch.setenv("HF_TOKEN", the_hub.token)
    assert questions(path="owner/closed") == questions(path="owner/private") == ["one", "two", "three"]


def test_a_plan_is_pinned_to_a_commit(make_plan: Callable[..., Plan], chats: FakeRepo, the_hub: FakeHub) -> None:
    old, new = chats.refs["main"], chats.commit({**FILES, "data/train.jsonl": lines("new")}, "v2")
    sources = [{"path": chats.id, "revision": old}, {"path": chats.id, "revision": "v2"}, {"path": "builtin:chat"}]
    pinned = pin_sources(make_plan(data={"train": sources, "eval": chats.id}), progress=False)
    assert [source.revision for source in pinned.recipe.data.train] == [old, new, None]
    assert [source.revision for source in pinned.recipe.data.eval] == [new]
    assert [(choice.key, choice.value, choice.because) for choice in pinned.choices] == [
        ("data.train.1.revision", new, "what v2 of owner/Some-Chats is on the hub now"),
        ("data.eval.0.revision", new, "what main of owner/Some-Chats is on the hub now"),
    ]
    asked = len(the_hub.requests)
    assert pin_sources(pinned, progress=False) == pinned, "workers, which get a pinned plan, ask nobody"
    assert len(the_hub.requests) == asked


def test_errors_name_the_line(make_plan: Callable[..., Plan], the_hub: FakeHub) -> None:
    places = Places("r.yaml", {("data", "train", 0, "path"): Place("r.yaml", 3, 0)})
    with pytest.raises(DataError, match="no data set owner/gone") as caught:
        pin_sources(make_plan(data={"train": "owner/gone"}), places, progress=False)
    assert caught.value.where == "r.yaml:3: data.train.0.path"


def test_a_data_set_that_changed_is_read_anew(make_plan: Callable[..., Plan], chats: FakeRepo) -> None:
    plan = make_plan(data={"train": chats.id})
    assert len(prepared(plan)[1].train) == 3
    chats.commit({**FILES, "data/train.jsonl": lines("new")})
    assert len(prepared(plan)[1].train) == 1


def test_tokenised_rows_are_read_once(make_plan: Callable[..., Plan], chats: FakeRepo, the_hub: FakeHub) -> None:
    plan = make_plan(data={"train": chats.id})
    prepared(plan)
    asked = len(the_hub.requests)
    prepared(plan)
    assert [path for _, path, _ in the_hub.requests[asked:]] == ["/api/datasets/owner/Some-Chats"]


@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "a failing server", "a silent server"])
def test_without_the_hub_the_copy_counts(
    make_plan: Callable[..., Plan],
    chats: FakeRepo,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    plan = make_plan(data={"train": chats.id, "eval": {"path": chats.id, "split": "test"}})
    online, _ = prepared(plan)
    chats.commit({**FILES, "data/train.jsonl": lines("new")}, "v2")
    capsys.readouterr()
    monkeypatch.setattr(hub, "LOOK_UP_SECONDS", 0.3)
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    elif how == "HF_DATASETS_OFFLINE":
        monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    else:
        chats.hangs, chats.status = how == "a silent server", 500
    offline, data = prepared(plan)
    assert offline.recipe == online.recipe
    assert (len(data.train), len(data.eval or ())) == (3, 1)
    assert "the copy in the local cache" in offline.choices[-1].because
    assert ("reading the cached copy" in capsys.readouterr().err) == ("server" in how)
    # Other settings: tokens are made anew, from the copy that the datasets library has.
    assert len(prepared(make_plan(data={"train": chats.id, "supervise": "all"}))[1].train) == 3
    with pytest.raises(DataError, match="owner/Some-Chats is not in the local cache, and "):
        pin_sources(make_plan(data={"train": {"path": chats.id, "revision": "v2"}}), progress=False)


def test_what_was_taken_away_is_still_in_the_cache(make_plan: Callable[..., Plan], chats: FakeRepo) -> None:
    plan = make_plan(data={"train": chats.id})
    prepared(plan)
    chats.private = True
    with pytest.raises(DataError, match="no data set owner/Some-Chats that this account can see") as caught:
        prepared(plan)
    assert "HF_DATASETS_OFFLINE=1 reads the copy in the local cache" in str(caught.value.fix)


def test_tokens_alone_are_enough_without_the_hub(
    make_plan: Callable[..., Plan], chats: FakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(data={"train": chats.id})
    prepared(plan)
    monkeypatch.setenv("HF_DATASETS_CACHE", "/nothing/there")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert len(prepared(plan)[1].train) == 3
    with pytest.raises(DataError, match="is not in the local cache, and HF_HUB_OFFLINE forbids"):
        prepared(make_plan(data={"train": chats.id, "supervise": "all"}))


def test_a_copy_that_another_program_made(
    make_plan: Callable[..., Plan], chats: FakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert questions(revision=chats.refs["main"], subset="small") == ["five", "six"]
    (copy,) = copies(chats.id)
    assert (copy.subset, copy.commit) == ("small", chats.refs["main"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _, data = prepared(make_plan(data={"train": {"path": chats.id, "subset": "small"}}))
    assert len(data.train) == 2
    with pytest.raises(DataError, match="is not in the local cache"):
        prepared(make_plan(data={"train": chats.id}))


def test_what_is_a_hub_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub(SourceSection(path="owner/name"))
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for path in ("owner/name", "builtin:chat", "./x", "x.jsonl", "a/b/c"):
        assert not is_hub(SourceSection(path=path))


def test_a_stream_makes_no_copy(make_plan: Callable[..., Plan], chats: FakeRepo, tmp_path: Path) -> None:
    source = {"path": chats.id, "split": "train+test"}
    plan = pin_sources(make_plan(data={"train": source, "streaming": True}), progress=False)
    pinned = plan.recipe.data.train[0].revision
    chats.commit({**FILES, "data/train.jsonl": lines("other")})
    stream = Stream(plan)
    streamed = [row.chat.token_ids.tolist() for row in stream.epoch(0)]
    assert copies(chats.id) == []
    assert not (tmp_path / "cache").exists()
    kept = {**source, "revision": pinned}
    rows = prepare(make_plan(data={"train": kept}), progress=False).train
    assert streamed == [rows.row(index)[0].tolist() for index in range(4)]


def test_a_stream_of_part_of_a_split_is_refused(make_plan: Callable[..., Plan], chats: FakeRepo) -> None:
    source = {"path": chats.id, "split": "train[:2]"}
    plan = pin_sources(make_plan(data={"train": source, "streaming": True}), progress=False)
    with pytest.raises(DataError, match=r"the split train\[:2\] can't be streamed") as caught:
        prepare(plan, progress=False)
    assert "streaming: false" in (caught.value.fix or "")


def test_a_stream_that_breaks_off_is_told(make_plan: Callable[..., Plan], the_hub: FakeHub, chats: FakeRepo) -> None:
    plan = pin_sources(make_plan(data={"train": chats.id, "streaming": True}), progress=False)
    rows = Stream(plan).epoch(0)
    chats.status = 404
    with pytest.raises(DataError) as caught:
        list(rows)
    assert caught.value.where == chats.id
