"""What parameters, their gradients and the optimizer take on one GPU, sharded and gathered, in bytes.

FSDP2's part follows torch 2.11 to 2.13, `torch/distributed/fsdp/_fully_shard`: gathered parameters are in the compute
dtype (or float8), gradients are reduced in the reduce dtype out of a buffer that lives until the next group's gradients
are complete (`FSDPParamGroup.post_backward`), and shards of gradients are in the masters' dtype (`foreach_reduce`).
`A_log` and `dt_bias`, which every rank keeps whole in float32, are too few to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sft_cli.plan.activations import has_compiled_mlp
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.float8 import float8_numbers, why_not_gathered
from sft_cli.plan.moments_offload import SLOTS, waits
from sft_cli.plan.parameters import Parameters, count_parameters
from sft_cli.plan.steps import micro_batches_per_step
from sft_cli.recipe.schema import Recipe

BYTES = {"float32": 4, "bfloat16": 2}

MOMENT_BYTES = {"adamw": 4.0, "adamw_8bit": 1 + 4 / 256}
"""Of one of Adam's moments of one parameter, by optimizer: in 8 bits a code, and a float32 scale for 256 of them."""


@dataclass(frozen=True)
class ShardedBytes:
    """Args:
    recipe: resolved.
    shape: the model.
    ranks: processes over all nodes.
    device: what each of them runs on.
    """

    recipe: Recipe
    shape: Architecture
    ranks: int
    device: Literal["cpu", "cuda"]

    @cached_property
    def count(self) -> Parameters:
        return count_parameters(self.shape)

    @cached_property
    def is_fsdp(self) -> bool:
        return self.recipe.sharding.backend == "fsdp2"

    @cached_property
    def is_offloaded(self) -> bool:
        """Whether shards are in host memory, and that is not the GPU's own."""
        return self.is_fsdp and self.recipe.sharding.cpu_offload and self.device == "cuda"

    @cached_property
    def shards(self) -> int:
        return max(1, self.ranks // self.recipe.sharding.replicas) if self.is_fsdp else 1

    @cached_property
    def compute(self) -> int:
        return BYTES[self.recipe.model.dtype]

    @cached_property
    def master(self) -> int:
        return BYTES[self.recipe.model.master_dtype]

    @cached_property
    def reduce(self) -> int:
        return BYTES[self.recipe.sharding.reduce_dtype]

    @cached_property
    def blocks(self) -> list[int]:
        """Parameters of each layer."""
        return [layer.total for layer in self.count.layers]

    @cached_property
    def head(self) -> int:
        """Parameters of the group that projects to words; where they are tied, the embedding's."""
        return self.count.head_matmul + self.count.final_norm

    @cached_property
    def is_tied(self) -> bool:
        return self.count.head == 0

    @property
    def parameters(self) -> float:
        """Of this rank's masters, wherever they are."""
        return self.count.total * self.master / self.shards

    @property
    def optimizer(self) -> float:
        """Of Adam's two moments, wherever they are: float32 whatever the masters are, unless in 8 bits."""
        return 2 * self.count.total * MOMENT_BYTES[self.recipe.optimizer.name] / self.shards

    @property
    def moments_in_host(self) -> float:
        """Of Adam's moments those that wait in host memory: codes, not their scales."""
        return 2 * self._waiting_numbers if self.recipe.optimizer.offload else 0

    @property
    def moments_on_device(self) -> float:
        """Of Adam's moments what stays on the GPU, and the slots for those that come and go."""
        if not self.recipe.optimizer.offload:
            return self.optimizer
        largest = max(*self._waiting_layers, *self._waiting_tables, 0)
        return self.optimizer - self.moments_in_host + SLOTS * 2 * largest

    @property
    def _waiting_numbers(self) -> float:
        """Parameters of this rank whose moments wait."""
        return sum(self._waiting_layers) + sum(self._waiting_tables)

    @property
    def _waiting_layers(self) -> list[float]:
        """The same by layer; all but experts, since vectors are few."""
        experts, waiting = sum(rows * row for rows, row in self._stacks), sum(self._waiting_stacks)
        return [
            (block - is_sparse * experts) / self.shards + is_sparse * waiting
            for block, is_sparse in zip(self.blocks, self.shape.sparse, strict=True)
        ]

    @property
    def _stacks(self) -> list[tuple[int, int]]:
        """Of the tensors that hold a layer's experts: how many there are, and numbers of each."""
        experts = self.shape.experts
        if experts is None:
            return []
        matrix = self.shape.hidden_size * experts.intermediate_size
        return [(experts.count, 2 * matrix), (experts.count, matrix)]

    @property
    def _waiting_stacks(self) -> list[int]:
        """Numbers of those whose moments wait, of a rank that has the most: an expert is on one rank."""
        numbers = [-(-rows // self.shards) * row for rows, row in self._stacks]
        return [number for number in numbers if waits(number)]

    @property
    def _waiting_tables(self) -> list[int]:
        """This rank's numbers of embedding and head, where their moments wait too."""
        tables = (self.count.embedding // self.shards, self.count.head // self.shards)
        return [numbers for numbers in tables if waits(numbers)]

    @cached_property
    def accumulates(self) -> bool:
        """Whether gradients of earlier micro-batches wait while one is computed."""
        return self.recipe.batching.mode == "padding" or micro_batches_per_step(self.recipe, self.ranks) > self.ranks

    def waiting_gradients(self, done: int) -> float:
        """Of gradients on the GPU that wait for the update, when backward has finished `done` parameters.

        Fused into backward none waits; with `cpu_offload` they wait in host memory. `defer_reduce` keeps those of
        all micro-batches but the last whole, in the reduce dtype (`to_accumulated_grad_if_needed`).
        """
        sharding = self.recipe.sharding
        if self.recipe.optimizer.in_backward:
            return 0
        reduced = 0 if self.is_offloaded else self.master / self.shards
        if not self.accumulates:
            return done * reduced
        if self.is_fsdp and sharding.defer_reduce:
            return (self.count.total - done) * self.reduce + done * reduced
        return self.count.total * reduced

    def made(self, parameters: int, *, is_layer: bool = True) -> float:
        """Of gradients as backward makes them, of one group: whole, in the compute dtype. Without FSDP2 they become
        the masters' as soon as they are there: of a layer those of weights that read one input together, an MLP's two
        being the most, less than half, or its three where it is compiled; of head and embedding, one weight each, all
        in the wider dtype."""
        if self.is_fsdp:
            return parameters * self.compute
        if not is_layer:
            return parameters * max(self.compute, self.master)
        is_compiled = has_compiled_mlp(self.shape, self.recipe.kernels)
        return max(parameters / 2, self._mlp if is_compiled else 0) * self.compute

    @property
    def float8_copies(self) -> float:
        """Of weights while backward is at an MLP: its three in float8, each laid out as its product wants it."""
        return 0 if self.recipe.kernels.float8 == "none" else self._mlp

    @cached_property
    def _mlp(self) -> int:
        """Parameters of a dense MLP."""
        return 0 if all(self.shape.sparse) else 3 * self.shape.hidden_size * self.shape.intermediate_size

    def reducing(self, parameters: int, *, is_layer: bool = True) -> float:
        """Of one group's gradients at the worst moment of their reduction: made and copied into the input of the
        reduce-scatter; or its input and its output, with another copy: that in the masters' dtype, or the one that
        replicas sum."""
        if not self.is_fsdp:
            return self.made(parameters, is_layer=is_layer)
        copies = [self.master if self.reduce != self.master else 0]
        if self.recipe.sharding.replicas > 1:
            copies.append(self.reduce)
        outputs = (self.reduce + max(copies)) / self.shards
        return self.reduce_input(parameters, is_layer=is_layer) + parameters * max(self.compute, outputs)

    def reduce_input(self, parameters: int, *, is_layer: bool = True) -> float:
        """Of the buffer that a group's reduction leaves until the next group's begins; preallocated ones are a layer's,
        and count under `buffers`."""
        if not self.is_fsdp or (is_layer and self._is_preallocated):
            return 0
        return parameters * self.reduce

    @property
    def buffers(self) -> float:
        """That are there throughout (`parallel/buffers.py`): what layers are gathered through in turn, unless a rank is
        alone, and two that they are reduced from."""
        if not self._is_preallocated:
            return 0
        staging = (self.recipe.sharding.prefetch + 1) * self.compute if self.shards > 1 else 0
        return max(self.blocks) * (staging + 2 * self.reduce)

    @cached_property
    def _is_preallocated(self) -> bool:
        return self.is_fsdp and self.recipe.sharding.buffers == "preallocated"

    def gathered_for_loss(self, *, in_forward: bool) -> float:
        """Of whole parameters in the compute dtype while the loss is computed, or at the start of its backward."""
        if not self.is_fsdp:
            return self._autocast_copies(self.count.total)
        whole = self._gathered(self.head * self.compute, len(self.blocks))
        if in_forward and self.shards > 1:
            # The buffer that the head was gathered through goes when forward ends.
            whole = max(whole, self._gathered(2 * self.head * self.compute, 0))
        return whole + self._uploaded(self.head)

    def gathered_after_loss(self) -> float:
        """The same while the head's gradient is reduced: the head is freed, the last layers are on their way."""
        if not self.is_fsdp:
            return self._autocast_copies(self.count.total)
        return self._gathered(0, len(self.blocks))

    def gathered_for_layer(self, layer: int, *, is_done: bool = False) -> float:
        """The same while backward is at a layer, or has freed it; a tied weight stays to the end of backward."""
        if not self.is_fsdp:
            return self._autocast_copies(sum(self.blocks[: layer + 1]))
        at_work = (0 if is_done else self._whole_blocks[layer]) + (self.head * self.compute if self.is_tied else 0)
        return self._gathered(at_work, layer) + self._uploaded(self.blocks[layer])

    @cached_property
    def _whole_blocks(self) -> list[int]:
        """Of each layer gathered: in the compute dtype, or a byte for each number that is gathered in float8."""
        saved = 0 if why_not_gathered(self.recipe) is not None else self.compute - 1
        return [
            block * self.compute - saved * float8_numbers(self.shape, layer) for layer, block in enumerate(self.blocks)
        ]

    def _gathered(self, at_work: float, layers: int) -> float:
        """Of parameters at work, of those of the first `layers` that are gathered ahead, and what stays of them and of
        the embedding after forward. One rank alone gathers nothing ahead."""
        sharding = self.recipe.sharding
        held = sum(self._whole_blocks[:layers]) + (0 if self.is_tied else self.count.embedding * self.compute)
        if sharding.reshard_after_forward is False:
            return at_work + held
        # What is gathered ahead is still in a buffer of its own; preallocated ones are there anyhow.
        is_free = self.shards == 1 or self._is_preallocated
        ahead = 0 if is_free else min(sharding.prefetch, layers) * max(self._whole_blocks)
        groups = sharding.reshard_after_forward
        return at_work + ahead + (0 if groups is True else held / min(groups, self.shards))

    def _uploaded(self, parameters: int) -> float:
        """Bytes of a group's shard on its way from host memory."""
        return parameters * self.master / self.shards if self.is_offloaded else 0

    def _autocast_copies(self, parameters: int) -> float:
        return parameters * self.compute if self.compute != self.master else 0
