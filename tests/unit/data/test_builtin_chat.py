from __future__ import annotations

import itertools
import json

import pytest

from sft_cli.data.builtin_chat import FACTS, HELDOUT_ROWS, TRAIN_ROWS, Row, generate


def facts_of(row: Row) -> frozenset[tuple[str, str]]:
    """The facts a conversation speaks of."""
    words = set(
        " ".join(message["content"] for message in row["messages"]).translate(str.maketrans(".!?,", "    ")).split()
    )
    return frozenset((kind, value) for kind, values in FACTS.items() for value in values if value in words)


def pairs_of(rows: list[Row]) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for row in rows for pair in itertools.combinations(sorted(facts_of(row)), 2)}


@pytest.fixture(scope="module")
def train() -> list[Row]:
    return generate("train")


@pytest.fixture(scope="module")
def heldout() -> list[Row]:
    return generate("heldout")


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(train: list[Row]) -> None:
    assert generate("train") == train
    assert generate("train", seed=1) != train


def test_sizes_and_shape(train: list[Row], heldout: list[Row]) -> None:
    assert (len(train), len(heldout)) == (TRAIN_ROWS, HELDOUT_ROWS)
    for row in train + heldout:
        roles = [message["role"] for message in row["messages"] if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert len(roles) >= 4


def test_every_conversation_speaks_of_two_facts(train: list[Row], heldout: list[Row]) -> None:
    assert {len(facts_of(row)) for row in train + heldout} == {2}


def test_no_heldout_pair_of_facts_occurs_in_training(train: list[Row], heldout: list[Row]) -> None:
    assert not pairs_of(train) & pairs_of(heldout)


def test_no_heldout_conversation_occurs_in_training(train: list[Row], heldout: list[Row]) -> None:
    assert not {json.dumps(row) for row in train} & {json.dumps(row) for row in heldout}


def test_every_heldout_value_is_known_from_training(train: list[Row], heldout: list[Row]) -> None:
    known = frozenset().union(*(facts_of(row) for row in train))
    assert frozenset().union(*(facts_of(row) for row in heldout)) <= known


def test_some_conversations_have_a_system_prompt(train: list[Row]) -> None:
    share = sum(row["messages"][0]["role"] == "system" for row in train) / len(train)
    assert 0.2 < share < 0.3


def test_the_answer_to_a_recall_is_a_fact_told_before(heldout: list[Row]) -> None:
    for row in heldout:
        told = " ".join(message["content"] for message in row["messages"] if message["role"] == "user")
        for message in row["messages"]:
            if message["content"].startswith(("Your name is ", "You live in ", "Your dog is called ")):
                assert f" {message['content'].split()[-1]}" in told
