"""The plan: a recipe with no `auto` left, the facts it was resolved against, and what it will cost.

A worker sees this and nothing else. `plan.json` in the run folder is one of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sft_cli.plan.architecture import Architecture, read_architecture
from sft_cli.plan.benching import Benching
from sft_cli.plan.probed_model import ProbedModel
from sft_cli.plan.profiling import Profiling
from sft_cli.recipe.schema import Recipe


class Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Choice(Fact):
    """One key of the recipe that was `auto` (or rounded, or left to a default), what it became and why."""

    key: str
    value: Any
    because: str


class World(Fact):
    """The processes of a run and what each runs on."""

    ranks: int
    """Processes over all nodes."""
    nodes: int = 1
    device: Literal["cpu", "cuda"]
    gpu_name: str | None = None
    gpu_memory_gib: float | None = None

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes


class ModelFacts(Fact):
    """What is known of the model before any weight is read."""

    folder: str | None
    """Local folder with config.json (and weights, unless they are random); None for a hub model not downloaded."""
    weights: Literal["pretrained", "random"]
    family: str
    """The file in `model/families/` that knows this architecture: `qwen3_5`, `llama`, ..., or `generic`."""
    config: dict[str, Any]
    """config.json as read."""
    parameters: int
    """Trained parameters; tied embeddings counted once."""
    probed: ProbedModel | None = None
    """Of the family `generic`: what building it has shown."""
    code_folder: str | None = None
    """The folder whose own code builds the model, where `model.trust_remote_code` allows it; None: transformers'."""
    because: str = ""
    """Where the config came from, for the plan's choices."""

    @property
    def code_path(self) -> Path | None:
        return None if self.code_folder is None else Path(self.code_folder)

    def architecture(self) -> Architecture:
        """The shape that parameters, FLOPs and memory follow from."""
        return read_architecture(self.config) if self.probed is None else self.probed.architecture()


class MemoryGib(Fact):
    """Estimated peak memory of one GPU by what it is spent on at the worst moment of a step, in GiB.

    What is not there at that moment is 0: logits are gone when the optimizer steps.
    """

    parameters: float
    """Masters."""
    gradients: float
    """Those that wait for the update, and those being made and reduced."""
    optimizer: float
    activations: float
    logits: float
    buffers: float
    """Parameters gathered from other ranks, and on a CPU the process itself."""
    total: float


class Plan(Fact):
    recipe: Recipe
    """Absolute paths, no `auto` left."""
    choices: tuple[Choice, ...]
    world: World
    model: ModelFacts
    tokenizer_folder: str | None
    memory_gib: MemoryGib
    memory_moment: str = ""
    """Which moment of a step takes the most memory."""
    host_memory_gib: float = 0
    """Of one rank, beside its process: what `sharding.cpu_offload` keeps off the GPU."""
    gpu_memory_gib: float | None
    fits: bool | None
    """Whether `memory_gib.total` and what is not tensors are under `gpu_memory_gib`; None without a GPU."""
    steps: int | None = None
    """Optimizer steps of the whole run; None where the data is not at hand."""
    steps_because: str | None = None
    """Why `steps` is None."""
    warmup_asked: float | None = None
    """`schedule.warmup` before it became whole steps; None where `steps` is."""
    rows_hash: str | None = None
    """Stands for the tokenised training rows; None where they are not at hand."""
    tokens_per_step: int
    """Slots of one optimizer step over all GPUs, rounded up to whole rounds of micro-batches."""
    micro_batches_per_step: int
    """Over all ranks. With padding a bound: a micro-batch is at most `batching.tokens` slots."""
    flops_per_token: float
    """Floating-point operations of forward and backward for one token, recomputation not counted."""
    profiling: Profiling | None = None
    """Profile some steps in place of training."""
    benching: Benching | None = None
    """Time some steps in place of training."""

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls.model_validate_json(path.read_text(encoding="utf-8"))
