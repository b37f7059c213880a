"""The schema as a tree of keys in plain words."""

from __future__ import annotations

import pytest

from sft_cli.recipe.keys import keys, sections


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (("batching", "tokens"), "a whole number above 1 and of at most 16777216"),
        (("data", "max_length"), "a whole number above 1 or null"),
        (("data", "train"), "a path, a source, or a list of them"),
        (("data", "train", "weight"), "a number above 0"),
        (("kernels", "compile"), "true or false"),
        (("launch", "gpus"), "auto or a whole number of at least 1"),
        (("model", "revision"), "text or null"),
        (("optimizer", "betas"), "a list of 2, each a number of at least 0 and below 1"),
        (("schedule", "min_ratio"), "a number from 0 to 1"),
        (("schedule", "name"), "one of constant, linear, cosine, wsd"),
        (("sharding", "reshard_after_forward"), "true or false or a whole number of at least 2"),
        (("telemetry", "trackers"), "a list, each one of tensorboard, mlflow, wandb, trackio"),
    ],
)
def test_wanted(path: tuple[str, ...], wanted: str) -> None:
    assert keys()[path].wanted == wanted


def test_every_key_has_a_description_and_words_for_its_values() -> None:
    for key in keys().values():
        assert key.field.description, key.dotted
        assert key.wanted, key.dotted


def test_sections_hold_the_sources_of_data() -> None:
    assert ("data", "train") in sections()
    assert ("sharding", "activation_checkpointing") in sections()


def test_words_and_text() -> None:
    assert keys()[("batching", "mode")].words == ("packing", "padding")
    assert keys()[("telemetry", "trackers")].words[0] == "tensorboard"
    assert keys()[("model", "path")].takes_text
    assert keys()[("data", "eval")].takes_text
    assert not keys()[("batching", "mode")].takes_text
