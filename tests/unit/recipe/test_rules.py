"""Keys that contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.errors import RecipeError, SftError
from sft_cli.recipe.load import Loaded
from sft_cli.recipe.rules import accumulation_in_backward, ranks_without_sharding, uneven_replicas

BASE = "model: {path: org/model}\ndata: {train: org/data}\n"


def test_bfloat16_weights_in_float32_computation_need_someone_to_gather_them(
    refused: Callable[..., SftError], load: Callable[..., Loaded]
) -> None:
    text = "model: {path: org/model, dtype: float32, master_dtype: bfloat16}\ndata: {train: org/data}\n"
    load(text)
    error = refused(text + "sharding: {backend: none}")
    assert (error.where or "").endswith("model.master_dtype")


@pytest.mark.parametrize(
    ("micro_batches", "ranks", "remedy"), [(16, 1, "tokens_per_step: 512}"), (16, 8, "tokens_per_step: 4096}")]
)
def test_an_update_in_backward_takes_one_micro_batch_a_rank(micro_batches: int, ranks: int, remedy: str) -> None:
    assert accumulation_in_backward(False, micro_batches, ranks, 512) is None
    assert accumulation_in_backward(True, ranks, ranks, 512) is None
    problem = accumulation_in_backward(True, micro_batches, ranks, 512)
    assert problem is not None
    assert problem.key == "optimizer.in_backward"
    assert f"has {micro_batches // ranks} of them on each rank" in problem.what
    assert remedy in problem.fix


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("batching: {order: length_grouped}", "batching.order", "goes with padding only"),
        ("batching: {balance: attention, mode: padding}", "batching.balance", "goes with packing only"),
        ("sharding: {backend: none}\nlaunch: {gpus: 2}", "sharding.backend", "for one process, and there are 2"),
        ("sharding: {backend: none, replicas: 2}", "sharding.replicas", "`backend: none` makes none"),
        ("sharding: {backend: none, cpu_offload: true}", "sharding.cpu_offload", "would change nothing"),
        ("sharding: {backend: none, buffers: preallocated}", "sharding.buffers", "would change nothing"),
        ("optimizer: {in_backward: true}", "optimizer.in_backward", "clip"),
        (
            "optimizer: {in_backward: true}\ntrain: {max_grad_norm: null}\nsharding: {cpu_offload: true}",
            "optimizer.in_backward",
            "way to the host",
        ),
        ("optimizer: {stochastic_rounding: true}", "optimizer.stochastic_rounding", "these are float32"),
        ("schedule: {warmup: 1.5}", "schedule.warmup", "neither a whole number"),
        ("schedule: {warmup: 10}\ntrain: {max_steps: 10}", "schedule.warmup", "not fewer than the 10"),
        ("evaluate: {every_steps: 5}", "evaluate.every_steps", "nothing to evaluate on"),
        ("evaluate: {at_start: true}", "evaluate.at_start", "nothing to evaluate on"),
        ("evaluate: {keep_best: true}", "evaluate.keep_best", "nothing to evaluate on"),
        ("evaluate: {patience: 2}", "evaluate.patience", "nothing to evaluate on"),
        ("launch: {node_rank: 0}", "launch.node_rank", "one machine only"),
        ("launch: {nodes: 2, node_rank: 2, rendezvous: 'a:1'}", "launch.node_rank", "not one of 2"),
        ("launch: {nodes: 2, max_restarts: 1}", "launch.max_restarts", "for one machine"),
        ("launch: {nodes: 2, rendezvous: gpu01}", "launch.rendezvous", "not host:port"),
        ("launch: {nodes: 2, rendezvous: 'gpu01:99999'}", "launch.rendezvous", "not host:port"),
        ("launch: {nodes: 2, rendezvous: ':29500'}", "launch.rendezvous", "not host:port"),
    ],
)
def test_contradictions(refused: Callable[..., SftError], text: str, key: str, what: str) -> None:
    error = refused(BASE + text)
    assert isinstance(error, RecipeError)
    assert error.where == f"r.yaml:3: {key}"
    assert what in error.what
    assert error.fix


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("evaluate: {patience: 2}", "evaluate.patience", "only the last step has one"),
        ("evaluate: {keep_best: true}\ncheckpoint: {enabled: false}", "evaluate.keep_best", "no checkpoints to keep"),
    ],
)
def test_evaluations_that_lead_to_nothing(refused: Callable[..., SftError], text: str, key: str, what: str) -> None:
    error = refused(f"model: {{path: org/model}}\ndata: {{train: org/data, eval: org/data}}\n{text}")
    assert error.where == f"r.yaml:3: {key}"
    assert what in error.what


def test_max_length_above_the_micro_batch(refused: Callable[..., SftError]) -> None:
    error = refused("model: {path: org/model}\ndata: {train: org/data, max_length: 513}\nbatching: {tokens: 512}\n")
    assert error.where == "r.yaml:2: data.max_length"
    assert "513" in error.what
    assert "512" in error.what


@pytest.mark.parametrize("key", ["subset", "revision", "split"])
def test_files_behind_an_address_have_no_keys_of_the_hub(refused: Callable[..., SftError], key: str) -> None:
    error = refused(f"model: {{path: org/model}}\ndata: {{train: {{path: 's3://bucket/a.jsonl', {key}: test_sft}}}}\n")
    assert error.where == f"r.yaml:2: data.train.0.{key}"
    assert f"{key}s" in error.what


@pytest.mark.parametrize(
    "text",
    [
        "batching: {order: length_grouped, mode: padding}",
        "batching: {balance: attention}",
        "sharding: {backend: none}",
        "sharding: {backend: none}\nlaunch: {gpus: 1}",
        "schedule: {warmup: 0}",
        "schedule: {warmup: 1}",
        "schedule: {warmup: 9.0}\ntrain: {max_steps: 10}",
        "schedule: {warmup: 0.99}\ntrain: {max_steps: 1}",
        "evaluate: {at_start: false, every_steps: null}",
    ],
)
def test_what_is_possible_passes(load: Callable[..., Loaded], text: str) -> None:
    load(BASE + text)


def test_max_length_may_equal_the_micro_batch(load: Callable[..., Loaded]) -> None:
    assert load("model: {path: org/model}\ndata: {train: org/data, max_length: 8192}\n").recipe.data.max_length == 8192


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("{path: ./a.jsonl, subset: x}", "data.train.0.subset"),
        ("{path: ./a.jsonl, split: test}", "data.train.0.split"),
        ("{path: './*.jsonl', split: test}", "data.train.0.split"),
        ("{path: ./folder, split: test}", "data.train.0.split"),
        ("{path: 'builtin:chat', subset: x}", "data.train.0.subset"),
        ("{path: ./a.jsonl, revision: main}", "data.train.0.revision"),
        ("{path: 'builtin:chat', revision: main}", "data.train.0.revision"),
    ],
)
def test_files_have_no_subsets_and_splits(refused: Callable[..., SftError], source: str, key: str) -> None:
    assert refused(f"model: {{path: org/model}}\ndata:\n  train: {source}\n").where == f"r.yaml:3: {key}"


def test_splits_that_mean_something(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("set").mkdir()
    sources = (
        "[{path: org/a, split: x, subset: y, revision: z}, {path: 'builtin:chat', split: heldout}, "
        "{path: a.jsonl, split: train}, {path: set, split: train}]"
    )
    assert len(load(f"model: {{path: org/model}}\ndata: {{train: {sources}}}").recipe.data.train) == 4


def test_a_local_model_has_no_revision(refused: Callable[..., SftError]) -> None:
    assert refused("model: {path: ./m, revision: main}\ndata: {train: org/a}").where == "r.yaml:1: model.revision"


TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"model: {{path: {TOKEN}}}\ndata: {{train: org/a}}", "model.path"),
        (f"model: {{path: org/m, revision: {TOKEN}}}\ndata: {{train: org/a}}", "model.revision"),
        ("model: {path: org/m}\ndata: {train: 'https://me:secret@host/chat.jsonl'}", "data.train.0.path"),
        (f"model: {{path: org/m}}\ndata: {{train: {{path: org/a, subset: {TOKEN}}}}}", "data.train.0.subset"),
    ],
)
def test_a_recipe_holds_no_secret(refused: Callable[..., SftError], text: str, key: str) -> None:
    error = refused(text)
    assert error.exit_code == 2
    assert str(error.where).endswith(key)
    assert "looks like a token" in error.what
    assert "HF_TOKEN" in str(error.fix)
    assert TOKEN not in str(error)
    assert "secret" not in str(error)


def test_a_secret_on_the_command_line_is_not_repeated(refused: Callable[..., SftError]) -> None:
    for text in (f"model.revision={TOKEN}", f"model.token={TOKEN}", f"train.seed={TOKEN}"):
        assert TOKEN not in str(refused(BASE, text))


@pytest.mark.parametrize("path", ["org/hf_llama31instruct", "hf_datasets", "./hf_models2024/x"])
def test_a_name_is_no_secret(load: Callable[..., Loaded], path: str) -> None:
    load(f"model: {{path: {path}}}\ndata: {{train: org/a}}\noutput_dir: runs/hf_llama31instruct\n")


def test_ranks_without_sharding() -> None:
    assert ranks_without_sharding("none", 2) is not None
    assert ranks_without_sharding("none", 1) is None
    assert ranks_without_sharding("fsdp2", 8) is None


def test_replicas_are_of_equal_size() -> None:
    assert uneven_replicas(1, 3) is None
    assert uneven_replicas(4, 4) is None
    problem = uneven_replicas(4, 6)
    assert problem is not None
    assert problem.what == "4 are asked for, and 6 ranks can't be spread over them evenly"
    assert problem.fix == "Write 1 or 2 or 3 or 6."


def test_a_stream_needs_a_number_of_steps(refused: Callable[..., SftError], load: Callable[..., Loaded]) -> None:
    text = "model: {path: org/model}\ndata:\n  train: org/data\n  streaming: true\n"
    error = refused(text)
    assert error.exit_code == 2
    assert error.where == "r.yaml:4: data.streaming"
    assert "train: {max_steps: 1000}" in (error.fix or "")
    load(text + "train: {max_steps: 10}\n")
    load(text + "train: {max_steps: 10, epochs: 3}\nbatching: {mode: padding, order: length_grouped}\n")


def test_float8_is_no_float32(refused: Callable[..., SftError]) -> None:
    text = "model: {path: org/model, dtype: float32}\ndata: {train: org/data}\nkernels: {float8: rowwise}\n"
    error = refused(text)
    assert error.where == "r.yaml:3: kernels.float8"
    assert "asks to be exact" in error.what
