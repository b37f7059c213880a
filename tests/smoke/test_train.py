"""`sftune train`, from the command to the export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.finished_run import finished_run, keys
from support.sftune import read_metrics, sftune, tiny, training_steps

STEP_KEYS = {
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "supervised_tokens",
    "slots",
    "tokens_per_second",
    "mfu",
    "step_seconds",
    "data_wait_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "peak_memory_gib",
    "batch_hash",
}


@pytest.fixture(scope="module")
def trained() -> Path:
    """A folder with a finished run on two ranks, in `run`: two micro-batches a step and rank, evaluated."""
    return finished_run()


def test_what_is_printed(trained: Path) -> None:
    out, err = (trained / "out").read_text(), (trained / "err").read_text()
    assert "step 8/8" in out
    assert "\x1b" not in out + err, "colour without a terminal"


def test_the_run_folder_is_complete(trained: Path) -> None:
    run = trained / "run"
    names = {path.name for path in run.iterdir()}
    assert {"recipe.yaml", "plan.json", "kernels.json", "metrics.jsonl", "checkpoints", "export", "logs"} <= names
    assert {path.name for path in (run / "logs").iterdir()} >= {"rank-0.log", "rank-1.log"}
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [f"step-0000000{n}" for n in (2, 4, 6, 8)]
    plan = json.loads((run / "plan.json").read_text())
    assert "auto" not in json.dumps(plan["recipe"]["kernels"])
    assert plan["steps"] == 8
    exactness = json.loads((run / "exactness.json").read_text())
    assert [kind["kind"] for kind in exactness["kinds"]] == ["linear_attention", "full_attention"]
    assert (run / "checkpoints" / "step-00000008" / "exactness.json").read_text() == json.dumps(
        exactness, indent=2
    ) + "\n"
    assert plan["world"]["ranks"] == 2


def test_metrics(trained: Path) -> None:
    lines = read_metrics(trained / "run")
    steps = training_steps(trained / "run")
    assert [line["step"] for line in steps] == list(range(1, 9))
    assert all(set(line) == STEP_KEYS for line in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(line["slots"] == 2048 and line["supervised_tokens"] < line["tokens"] <= 2048 for line in steps)
    parts = ("data_wait_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")
    assert all(line["forward_seconds"] > 0 and line["optimizer_seconds"] > 0 for line in steps)
    assert all(sum(line[part] for part in parts) <= line["step_seconds"] for line in steps)
    assert all(line["mfu"] is None and line["peak_memory_gib"] > 0 for line in steps)
    evaluations = [line for line in lines if "eval_loss" in line and "event" not in line]
    assert [line["step"] for line in evaluations] == list(range(9))
    assert lines[-1]["event"] == "done"
    assert lines[-1]["tokens"] == sum(line["tokens"] for line in steps)


def test_the_manifest_names_what_ran(trained: Path) -> None:
    kernels = json.loads((trained / "run" / "kernels.json").read_text())
    assert kernels["linear_attention"]["callable"] == "sft_cli.kernels.reference.gated_delta_rule"
    assert {slot["asked"] for slot in kernels.values()} == {"auto"}


def test_the_export_loads_and_generates(trained: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = trained / "run" / "export"
    tokenizer = AutoTokenizer.from_pretrained(export)
    model = AutoModelForCausalLM.from_pretrained(export)
    messages = [{"role": "user", "content": "What is 1 + 1?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**prompt, max_new_tokens=3, do_sample=False)
    assert tokens.shape[1] > prompt["input_ids"].shape[1]


def test_a_second_run_in_its_folder_is_refused(trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (trained / "run").rglob("*")}
    ended = sftune("train", *tiny(trained), cwd=trained)
    assert ended.code == 2
    assert "--overwrite" in ended.err
    assert {path: path.stat().st_mtime_ns for path in (trained / "run").rglob("*")} == before


@pytest.mark.long
def test_training_goes_on_from_an_export(trained: Path, tmp_path: Path) -> None:
    """A local model folder: pretrained weights, its tokenizer; the same tensors come out."""
    from safetensors.torch import load_file

    source = trained / "run" / "export"
    changes = {
        **{key: keys()[key] for key in ("data.eval", "evaluate.at_start")},
        "model.path": str(source),
        "model.weights": "pretrained",
        # Another tokenizer folder: all rows are tokenised anew, so few of them.
        "data.train": "[{path: builtin:chat, split: heldout}]",
        "train.max_steps": "1",
    }
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path)
    assert ended.code == 0, ended.err
    first_loss = read_metrics(trained / "run")[-2]["eval_loss"]
    assert read_metrics(tmp_path / "run")[0]["eval_loss"] == pytest.approx(first_loss, abs=1e-5)
    expected = load_file(source / "model.safetensors")
    found = load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert {n: (t.shape, t.dtype) for n, t in found.items()} == {n: (t.shape, t.dtype) for n, t in expected.items()}


@pytest.mark.long
def test_bfloat16_and_padding(tmp_path: Path) -> None:
    changes = {"model.dtype": "bfloat16", "batching.mode": "padding", "checkpoint.enabled": "false"}
    changes["train.max_steps"] = "2"  # bfloat16 is slow on most CPUs
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path)
    assert ended.code == 0, ended.err
    steps = training_steps(tmp_path / "run")
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(line["tokens"] < line["slots"] for line in steps)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "export").exists()


@pytest.mark.long
def test_recomputing_and_offloading_change_no_number(tmp_path: Path) -> None:
    """Two ranks; the plan finds no GPU to fill, so `auto` means all layers."""
    losses = []
    for mode, layers, offload in [("none", "all", "false"), ("selective", "auto", "true")]:
        folder = tmp_path / mode
        changes = {
            "launch.gpus": "2",
            "train.max_steps": "2",
            "checkpoint.enabled": "false",
            "sharding.activation_checkpointing.mode": mode,
            "sharding.activation_checkpointing.layers": layers,
            "sharding.activation_checkpointing.offload": offload,
        }
        ended = sftune("train", *tiny(folder, **changes), cwd=tmp_path)
        assert ended.code == 0, ended.err
        losses.append([(line["loss"], line["grad_norm"]) for line in training_steps(folder / "run")])
    assert losses[0] == losses[1]


@pytest.mark.long
def test_a_dry_run_leaves_the_plan_alone(tmp_path: Path) -> None:
    ended = sftune("train", *tiny(tmp_path), "--dry-run", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "dry run: one step of 1,024 slots" in ended.out
    assert {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")} == {"plan.json"}


@pytest.mark.long
def test_weights_that_do_not_fit_their_config_end_with_2(trained: Path, tmp_path: Path) -> None:
    """Found by the workers, all of them; said once."""
    source = tmp_path / "model"
    shutil.copytree(trained / "run" / "export", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    options = tiny(tmp_path, **{"model.path": str(source), "launch.gpus": "2"})
    ended = sftune("train", *options, cwd=tmp_path)
    assert ended.code == 2
    assert ended.err.count("error:") == 1
    assert "mlp.gate_proj.weight has shape" in ended.err
