"""Keys the schema doesn't have: what was meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sft_cli.errors import SftError

BASE = "model: {path: org/model}\ndata: {train: org/data}\n"


@pytest.mark.parametrize(
    ("text", "where", "what", "fix"),
    [
        (
            "optimiser: {eps: 1e-6}",
            "r.yaml:3: optimiser",
            "no key `optimiser` at the top level",
            "Did you mean `optimizer`?",
        ),
        (
            "optimizer:\n  lerning_rate: 1",
            "r.yaml:4: optimizer.lerning_rate",
            "in `optimizer`",
            "Did you mean `learning_rate`?",
        ),
        (
            "learning_rate: 1e-5",
            "r.yaml:3: learning_rate",
            "`learning_rate` belongs in `optimizer`",
            "under `optimizer:`",
        ),
        ("train: {warmup: 3}", "r.yaml:3: train.warmup", "`warmup` belongs in `schedule`", "under `schedule:`"),
        ("train: {output_dir: x}", "r.yaml:3: train.output_dir", "belongs at the top level", "top level"),
        ("train: {optimizer: {}}", "r.yaml:3: train.optimizer", "belongs at the top level", "top level"),
        (
            "activation_checkpointing: {}",
            "r.yaml:3: activation_checkpointing",
            "belongs in `sharding`",
            "under `sharding:`",
        ),
        ("split: x", "r.yaml:3: split", "`split` belongs in `data.train`", "under `data.train:`"),
        ("every_steps: 3", "r.yaml:3: every_steps", "in `evaluate` or in `checkpoint`", "under `evaluate:`"),
        ("mode: packing", "r.yaml:3: mode", "belongs in `batching`", "under `batching:`"),
        ("zzz: 3", "r.yaml:3: zzz", "no key `zzz`", "The keys at the top level: model, data"),
        ("train: {eval_evry_steps: 3}", "r.yaml:3: train.eval_evry_steps", "no key", "every_steps"),
        ("lora: {r: 8}", "r.yaml:3: lora", "no LoRA", "Remove it."),
        ("batching: {token: 3}", "r.yaml:3: batching.token", "no key `token` in `batching`", "Did you mean `tokens`?"),
        ("token: hf_x", "r.yaml:3: token", "recipes hold no secrets", "HF_TOKEN"),
        ("train: {lr: 3}", "r.yaml:3: train.lr", "`optimizer.learning_rate`", "optimizer: {learning_rate"),
        ("batching: 3", "r.yaml:3: batching", "a section, not a single value; got the number 3", "mode, tokens, order"),
        ("optimizer: adamw", "r.yaml:3: optimizer", "a section", "Write `optimizer: {name: adamw}`"),
        ("train: [1]", "r.yaml:3: train", "a section", "Its keys: epochs"),
    ],
)
def test_one_unknown_key(refused: Callable[..., SftError], text: str, where: str, what: str, fix: str) -> None:
    error = refused(BASE + text)
    assert error.where == where
    assert what in error.what
    assert fix in (error.fix or "")
    assert error.exit_code == 2


def test_unknown_keys_of_a_source(refused: Callable[..., SftError]) -> None:
    error = refused("model: {path: org/model}\ndata:\n  train:\n    - path: org/a\n    - path: org/b\n      splt: x\n")
    assert error.where == "r.yaml:6: data.train.1.splt"
    assert error.fix == "Did you mean `split`?"


def test_a_misspelled_required_key_is_told_once(refused: Callable[..., SftError]) -> None:
    error = refused("modl: {path: org/model}\ndata: {train: org/data}\n")
    assert error.where == "r.yaml:1: modl"
    assert error.fix == "Did you mean `model`?"


@pytest.mark.parametrize("word", ["adapter", "peft", "load_in_4bit"])
def test_foreign_keys_anywhere(refused: Callable[..., SftError], word: str) -> None:
    assert "no LoRA" in refused(BASE.replace("org/model", f"org/model, {word}: true")).what
