"""Wrong types and values: the line, what was got, what is wanted, and a remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sft_cli.errors import RecipeError, SftError
from sft_cli.recipe.load import Loaded

BASE = "model: {path: org/model}\ndata: {train: org/data}\n"


@pytest.mark.parametrize(
    ("text", "key", "what", "fix"),
    [
        ("optimizer: {learning_rate: true}", "optimizer.learning_rate", "a number above 0, got true", "default, 1e-5"),
        ("optimizer: {learning_rate: fast}", "optimizer.learning_rate", 'got the text "fast"', "default, 1e-5"),
        ("optimizer: {learning_rate: 0}", "optimizer.learning_rate", "above 0, got the number 0", "default"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate", "got the number .nan", "default"),
        ("optimizer: {weight_decay: .inf}", "optimizer.weight_decay", "got the number .inf", "default"),
        ("optimizer: {betas: [0.9]}", "optimizer.betas", "a list of 2", "[0.9, 0.95]"),
        ("optimizer: {betas: [0.9, 1.0]}", "optimizer.betas", "below 1", "[0.9, 0.95]"),
        ("kernels: {float8: off}", "kernels.float8", 'one of none, tensorwise, rowwise, got the text "off"', "`none`?"),
        ("kernels: {float8: false}", "kernels.float8", "got false", "`none`?"),
        ("batching: {mode: off}", "batching.mode", "one of packing, padding", "the default, packing"),
        ("batching: {mode: Packing}", "batching.mode", "one of packing, padding", "Did you mean `packing`?"),
        ("schedule: {name: cosin}", "schedule.name", "constant, linear, cosine, wsd", "Did you mean `cosine`?"),
        (
            "batching: {tokens: 1e3}",
            "batching.tokens",
            "a whole number above 1 and of at most 16777216, got the number 1000.0",
            "Write 1000.",
        ),
        ("batching: {tokens: 131_072}", "batching.tokens", 'got the text "131_072"', "Write 131072."),
        ("batching: {tokens: 8k}", "batching.tokens", 'got the text "8k"', "Write 8192."),
        ("batching: {tokens: 512.5}", "batching.tokens", "got the number 512.5", "default, 8192"),
        ("batching: {tokens: null}", "batching.tokens", "got null", "default, 8192"),
        ("kernels: {strict: yes}", "kernels.strict", 'true or false, got the text "yes"', "Write true."),
        ("kernels: {strict: off}", "kernels.strict", "true or false", "Write false."),
        ("kernels: {strict: 1}", "kernels.strict", "got the number 1", "default, true"),
        ("train: {epochs: 0}", "train.epochs", "a whole number of at least 1, got the number 0", "default, 1"),
        ("train: {seed: true}", "train.seed", "got true", "default, 0"),
        ("launch: {gpus: all}", "launch.gpus", "auto or a whole number of at least 1", "default, auto"),
        ("telemetry: {trackers: wandb}", "telemetry.trackers", "a list", "Write `trackers: [wandb]`"),
        ("telemetry: {trackers: [wanb]}", "telemetry.trackers", '["wanb"]', "Did you mean `wandb`?"),
        ("sharding: {reshard_after_forward: 1}", "sharding.reshard_after_forward", "true or false or", "true"),
        ("output_dir: 3", "output_dir", "expected text, got the number 3", "Put it in quotes."),
        ('output_dir: ""', "output_dir", "expected text, got nothing", "runs/sftune"),
    ],
)
def test_one_wrong_value(refused: Callable[..., SftError], text: str, key: str, what: str, fix: str) -> None:
    error = refused(BASE + text)
    assert error.where == f"r.yaml:3: {key}"
    assert what in error.what
    assert fix in (error.fix or "")
    assert isinstance(error, RecipeError)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("data: {train: org/data}", "r.yaml: model", "the recipe has no `model`"),
        ("model: {path: org/model}", "r.yaml: data", "the recipe has no `data`"),
        ("model:\ndata: {train: org/data}", "r.yaml:1: model.path", "`path` is missing"),
        ("model: {path: org/model}\ndata:\n", "r.yaml:2: data.train", "`train` is missing"),
        ("model: {path: ''}\ndata: {train: org/data}", "r.yaml:1: model.path", "expected text, got nothing"),
        ("model: {path: 3}\ndata: {train: org/data}", "r.yaml:1: model.path", "got the number 3"),
        ("model: {path: org/model}\ndata: {train: []}", "r.yaml:2: data.train", "got nothing"),
        ("model: {path: org/model}\ndata:\n  train: 5", "r.yaml:3: data.train.0", "got the number 5"),
        ("model: {path: org/model}\ndata: {train: [{split: x}]}", "r.yaml:2: data.train.0.path", "`path` is missing"),
        ("model: {path: org/model}\ndata: {train: {path: a/b, weight: 0}}", "r.yaml:2: data.train.0.weight", "above 0"),
        ("model: {path: org/model}\ndata: {train: {path: a/b, weight: .inf}}", "r.yaml:2: data.train.0.weight", ".inf"),
    ],
)
def test_model_and_data(refused: Callable[..., SftError], text: str, where: str, what: str) -> None:
    error = refused(text)
    assert error.where == where
    assert what in error.what
    assert error.fix


def test_several_errors_come_in_one_report_in_the_order_of_the_lines(refused: Callable[..., SftError]) -> None:
    error = refused(BASE + "train: {epochs: 0}\nlearning_rate: 3\nbatching:\n  mode: 3\n  tokens: 0\n")
    lines = [line for line in str(error).splitlines() if line.startswith("r.yaml:") and line[7].isdigit()]
    assert [line.split(": ")[0] for line in lines] == ["r.yaml:3", "r.yaml:4", "r.yaml:6", "r.yaml:7"]
    assert error.where == "r.yaml"
    assert "4 things to correct" in error.what


def test_numbers_that_yaml_1_1_would_misread(load: Callable[..., Loaded]) -> None:
    recipe = load(BASE + "optimizer: {learning_rate: 1e-5, weight_decay: 0}\nbatching: {tokens: 010}\n").recipe
    assert recipe.optimizer.learning_rate == 1e-5
    assert recipe.optimizer.weight_decay == 0.0
    assert recipe.batching.tokens == 10
