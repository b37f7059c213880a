from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from sft_cli.data import fingerprint
from sft_cli.data.fingerprint import data_facts
from sft_cli.plan.plan import Plan

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"


def facts(plan: Plan) -> object:
    return data_facts(plan, plan.recipe.data.train, 128)


def test_changes_of_the_content_count_and_changes_of_the_date_alone_do_not(make_plan, write_rows) -> None:
    file = write_rows([{"messages": []}])
    plan = make_plan(data={"train": str(file)})
    before = facts(plan)
    os.utime(file, (1, 1))
    assert facts(plan) == before
    write_rows([{"messages": [1]}])
    assert facts(plan) != before


def test_large_files_are_known_by_size_and_date(make_plan, write_rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "HASHED_BYTES", 4)
    file = write_rows([{"messages": []}])
    plan = make_plan(data={"train": str(file)})
    before = facts(plan)
    os.utime(file, (1, 1))
    assert facts(plan) != before


def test_a_new_file_in_a_folder_counts(make_plan, write_rows, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    write_rows([{}], name="d/a.jsonl")
    plan = make_plan(data={"train": str(tmp_path / "d")})
    before = facts(plan)
    write_rows([{}], name="d/b.jsonl")
    assert facts(plan) != before


def test_the_tokenizer_and_the_template_count(make_plan, tmp_path: Path) -> None:
    shutil.copytree(BUILTIN, tmp_path / "t")
    template = tmp_path / "mine.jinja"
    template.write_text("one")
    plan = make_plan(tokenizer=tmp_path / "t", model={"chat_template": str(template)})
    seen = [facts(plan)]
    template.write_text("two")
    seen.append(facts(plan))
    (tmp_path / "t" / "chat_template.jinja").write_text("three")
    seen.append(facts(plan))
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize(
    "data",
    [
        {"supervise": "all"},
        {"overlong": "drop"},
        {"bad_rows": "skip"},
        {"train": {"path": "builtin:chat", "split": "heldout"}},
    ],
)
def test_settings_that_change_tokens_count(make_plan, data: dict[str, object]) -> None:
    assert facts(make_plan(data=data)) != facts(make_plan())


def test_the_commit_of_a_hub_data_set_counts(make_plan) -> None:
    sources = [{"path": "owner/name", "revision": revision} for revision in (None, "a" * 40, "b" * 40)]
    seen = [json.dumps(facts(make_plan(data={"train": source}))) for source in sources]
    assert len(set(seen)) == 3


def test_settings_that_change_no_token_do_not_count(make_plan) -> None:
    data = {"train": {"path": "builtin:chat", "weight": 2.5}}
    other = make_plan(data=data, train={"seed": 5}, batching={"mode": "padding"}, ranks=3)
    assert facts(other) == facts(make_plan())


def test_other_builtin_conversations_count(make_plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(make_plan())
    monkeypatch.setattr(fingerprint, "generate", lambda split: [])
    assert facts(make_plan()) != before
