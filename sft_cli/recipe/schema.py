"""The recipe as types: every key, its type, its default and one line of what it does.

Frozen, with no key more than these. `docs/recipe.md` and `sftune schema` are generated from here; which of the
values are not built yet stands in `unbuilt.py`, and what must hold between sections in `rules.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _option(default: Any, description: str, **constraints: Any) -> Any:
    return Field(default, description=description, **constraints)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_sources(value: Any) -> Any:
    """`train: chat.jsonl` and `train: {path: ...}` mean a list of one."""
    items = value if isinstance(value, list | tuple) else [value]
    return tuple({"path": item} if isinstance(item, str) else item for item in items)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelSection(Section):
    path: str = Field(description="Hub id, local folder, `builtin:` name, or a config.json alone", min_length=1)
    revision: str | None = _option(None, "Branch, tag or commit of a hub model")
    weights: Literal["pretrained", "random"] = _option(
        "pretrained", "`random` needs config.json alone: profile, bench, smoke runs; builtin models are always random"
    )
    dtype: Literal["bfloat16", "float32"] = _option("bfloat16", "What forward and backward compute in")
    master_dtype: Literal["float32", "bfloat16"] = _option("float32", "What the optimizer updates")
    tokenizer: str | None = _option(None, "Hub id or folder of the tokenizer; default: `model.path`")
    chat_template: str | None = _option(None, "A .jinja file; default: the tokenizer's own, else ChatML")
    trust_remote_code: bool = _option(False, "Run Python code that comes with the model")


class SourceSection(Section):
    path: str = Field(description="Hub id, file, glob, folder, address (`s3://` ...), or `builtin:chat`", min_length=1)
    revision: str | None = _option(None, "Branch, tag or commit of a hub data set")
    subset: str | None = _option(None, "Configuration of a hub data set")
    split: str | None = _option(
        None, "Split of a hub or builtin data set; default: `train`, for `builtin:chat` under `data.eval` `heldout`"
    )
    format: Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion"] = _option(
        "auto", "The shape of a row; `auto` looks at the columns"
    )
    weight: float = _option(
        1.0, "How often each row is seen in an epoch; 2.5: two copies and a seeded half", gt=0, allow_inf_nan=False
    )


Sources = Annotated[tuple[SourceSection, ...], BeforeValidator(_as_sources), Field(strict=False)]


class DataSection(Section):
    train: Sources = Field(description="What to train on: a list of sources, or just a path", min_length=1)
    eval: Sources = _option((), "What to evaluate on: a list of sources, or just a path")
    supervise: Literal["assistant", "last_assistant", "all"] = _option("assistant", "Which tokens the loss counts")
    max_length: int | None = _option(None, "Longest row in tokens; default: `batching.tokens`", gt=1)
    overlong: Literal["truncate", "drop", "error"] = _option("truncate", "What to do with a longer row")
    bad_rows: Literal["error", "skip"] = _option(
        "error", "What to do with a row that can't be used; `skip` counts them"
    )
    streaming: bool = _option(False, "Read rows while training, for sets larger than the disk; needs `train.max_steps`")
    cache_dir: str = _option("~/.cache/sftune", "Where tokenised data is kept")


class BatchingSection(Section):
    mode: Literal["packing", "padding"] = _option(
        "packing", "Rows packed into full sequences, or padded to the longest"
    )
    tokens: int = _option(8192, "Token slots of one micro-batch on one GPU", gt=1, le=2**24)
    order: Literal["shuffled", "length_grouped", "sequential"] = _option(
        "shuffled", "Order of the rows; `length_grouped` goes with padding only"
    )
    balance: Literal["none", "attention"] = _option(
        "none",
        "`attention`: packs that run at the same time on different GPUs cost attention about the same; packing only",
    )


class KernelsSection(Section):
    strict: bool = _option(True, "A slow fallback, or a leak between samples, stops the run before step 1")
    linear_attention: Literal["auto", "flash_qla", "fla", "torch"] = _option("auto", "The gated delta rule")
    conv: Literal["auto", "sftune", "causal_conv1d", "fla", "torch"] = _option(
        "auto", "The short causal convolution before it"
    )
    attention: Literal["auto", "varlen", "flash_attention_2", "flash_attention_4", "flex", "sdpa"] = _option(
        "auto", "Softmax attention"
    )
    norm: Literal["auto", "sftune", "liger", "torch"] = _option("auto", "RMSNorm")
    gated_norm: Literal["auto", "fla", "torch"] = _option("auto", "The gated RMSNorm after the delta rule")
    mlp: Literal["auto", "liger", "torch"] = _option("auto", "SwiGLU")
    loss: Literal["auto", "liger", "chunked", "torch"] = _option("auto", "The output projection and cross-entropy")
    compile: bool = _option(False, "torch.compile on the arithmetic between the kernels, block by block")
    float8: Literal["none", "tensorwise", "rowwise"] = _option(
        "none", "Matrix products of large linear layers in float8, through torchao; needs an Ada or Hopper GPU or newer"
    )
    hub: bool = _option(False, "May take kernels from the Hugging Face kernel hub")


class ActivationCheckpointingSection(Section):
    mode: Literal["none", "full", "selective", "auto"] = _option(
        "full", "What backward recomputes; `auto`: the least that fits, a mix of the others"
    )
    layers: Literal["all", "auto"] | Annotated[int, Field(ge=0)] = _option(
        "all", "How many layers, from the first on, are in `mode`; `auto`: the fewest that fit"
    )
    others: Literal["none", "selective"] = _option("none", "What the layers after those do; goes with `mode: full`")
    offload: bool = _option(False, "Kept activations wait in host memory")

    def of_layers(self, count: int) -> list[Literal["none", "full", "selective"]]:
        """Of each of a model's layers whether it is in `none`, `full` or `selective`; resolved, so without `auto`."""
        assert self.mode != "auto", "the plan has resolved it"
        assert self.layers != "auto", "the plan has resolved it"
        first = count if self.layers == "all" else min(self.layers, count)
        return [self.mode] * first + [self.others] * (count - first)


class ShardingSection(Section):
    backend: Literal["fsdp2", "none"] = _option("fsdp2", "How parameters are spread over GPUs")
    replicas: int = _option(1, "More than 1: hybrid sharding", ge=1)
    reshard_after_forward: bool | Annotated[int, Field(ge=2)] = _option(
        True, "Free gathered parameters after forward: yes, no, or reshard to groups of this many GPUs"
    )
    prefetch: int = _option(1, "Layers gathered ahead", ge=0)
    reduce_dtype: Literal["float32", "bfloat16"] = _option("float32", "What gradients are summed over GPUs in")
    buffers: Literal["allocator", "preallocated"] = _option("allocator", "`preallocated`: two alternating buffers")
    defer_reduce: bool = _option(False, "Accumulate unsharded gradients and reduce them once a step")
    cpu_offload: bool = _option(False, "Parameters, gradients and optimizer in host memory")
    activation_checkpointing: ActivationCheckpointingSection = ActivationCheckpointingSection()


class OptimizerSection(Section):
    name: Literal["adamw", "adamw_8bit"] = _option("adamw", "`adamw_8bit` keeps its moments in 8 bits")
    learning_rate: float = _option(1e-5, "The peak of the schedule", gt=0, allow_inf_nan=False)
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
        BeforeValidator(_as_tuple),
    ] = _option((0.9, 0.95), "Decay of the first and second moment")
    eps: float = _option(1e-8, "Added to the denominator", gt=0, allow_inf_nan=False)
    weight_decay: float = _option(
        0.0, "Decoupled decay; never on norms, biases, A_log, dt_bias", ge=0, allow_inf_nan=False
    )
    stochastic_rounding: bool = _option(
        False, "bfloat16 masters are rounded by chance, so that small updates move them in the mean"
    )
    in_backward: bool = _option(
        False, "Update while gradients appear; needs `train.max_grad_norm: null` and one micro-batch a step and rank"
    )
    offload: bool = _option(
        False, "8-bit moments wait in host memory and come to the GPU for their update; needs `in_backward`"
    )


class ScheduleSection(Section):
    name: Literal["constant", "linear", "cosine", "wsd"] = _option("cosine", "Shape of the learning rate after warm-up")
    warmup: float = _option(0.03, "Steps, or a fraction of all steps below 1", ge=0, allow_inf_nan=False)
    min_ratio: float = _option(0.1, "The last learning rate over the peak", ge=0, le=1)


class TrainSection(Section):
    epochs: int = _option(1, "Passes over the data", ge=1)
    max_steps: int | None = _option(None, "Stop after this many steps", ge=1)
    tokens_per_step: int = _option(
        131072, "Slots, padding included, over all GPUs; rounded up to whole rounds of micro-batches", ge=1
    )
    max_grad_norm: float | None = _option(1.0, "Clip the gradient to this norm", gt=0, allow_inf_nan=False)
    seed: int = _option(0, "Of weights, order and weights of sources", ge=0, le=2**63 - 1)


class EvaluateSection(Section):
    every_steps: int | None = _option(None, "Evaluate every so many steps; the last step is always evaluated", ge=1)
    at_start: bool = _option(False, "Evaluate before the first step")
    keep_best: bool = _option(False, "Keep the checkpoint with the lowest evaluation loss")
    patience: int | None = _option(None, "Stop after so many evaluations without a new best", ge=1)


class CheckpointSection(Section):
    enabled: bool = _option(True, "false writes neither checkpoints nor export")
    every_steps: int = _option(200, "Steps between checkpoints; the last step is always saved", ge=1)
    keep: int = _option(2, "How many checkpoints stay on disk", ge=1)
    export: bool = _option(True, "Write a Hugging Face model folder at the end")


class TelemetrySection(Section):
    log_every_steps: int = _option(1, "Steps between lines of metrics.jsonl", ge=1)
    trackers: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb", "trackio"], ...], BeforeValidator(_as_tuple)
    ] = _option((), "Where else the metrics go")


class LaunchSection(Section):
    gpus: Literal["auto"] | Annotated[int, Field(ge=1)] = _option(
        "auto", "Processes on this machine; `auto`: the visible GPUs, else one CPU process"
    )
    nodes: int = _option(1, "Machines", ge=1)
    node_rank: int | None = _option(None, "Which of them this is", ge=0)
    rendezvous: str | None = _option(None, "host:port of the first machine")
    max_restarts: int = _option(0, "Restarts after a failed worker", ge=0)


class Recipe(Section):
    """What the user wrote, complete with defaults."""

    model: ModelSection
    data: DataSection
    batching: BatchingSection = BatchingSection()
    kernels: KernelsSection = KernelsSection()
    sharding: ShardingSection = ShardingSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    telemetry: TelemetrySection = TelemetrySection()
    launch: LaunchSection = LaunchSection()
    output_dir: str = _option(
        "runs/sftune", "Where the run is written, relative to the working directory", min_length=1
    )
