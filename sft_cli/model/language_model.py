"""The module that is trained: a decoder of transformers, then final norm, head and loss as one module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from sft_cli.model.families.family import DeltaNet, Family

LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden (N, hidden), head weight (words, hidden), targets (N,)) -> summed loss; see `kernels/loss.py`."""


DELTA_NET_KEYS = frozenset({"segment_bounds", "chunk_indices"})
"""Of a batch: what only our own forward of Gated DeltaNet blocks knows. The rest transformers documents."""


class HeadAndLoss(nn.Module):
    """Final norm, output projection and loss behind one forward.

    One forward, because a sharded weight is whole only inside the forward of the module that owns it.
    """

    def __init__(self, norm: nn.Module, linear: nn.Linear, loss: LossFunction) -> None:
        super().__init__()
        self.norm = norm
        self.linear = linear
        self.loss = loss

    def forward(self, hidden: Tensor, positions: Tensor | None, targets: Tensor | None) -> Tensor:
        """Loss at `positions`, or the logits everywhere; the head does not work where the loss does not look."""
        if positions is None:
            return self.linear(self.norm(hidden))
        counted = hidden.flatten(0, 1).index_select(0, positions)
        return self.loss(self.norm(counted), self.linear.weight, targets)


class LanguageModel(nn.Module):
    """Args:
    causal_lm: a `...ForCausalLM` of transformers with `model.embed_tokens`, `model.layers`, `model.norm`, `lm_head`.
    family: what is particular to its architecture.
    loss: see `LossFunction`.
    """

    def __init__(self, causal_lm: Any, *, family: Family, loss: LossFunction) -> None:
        super().__init__()
        self.config = causal_lm.config
        self.tied = bool(self.config.tie_word_embeddings)
        self.decoder = causal_lm.model  # first, so that a tied weight goes by the embedding's name
        self.head = HeadAndLoss(self.decoder.norm, causal_lm.lm_head, loss)
        self.decoder.norm = nn.Identity()
        self.family = family
        self.ignored_weights: list[str] = list(causal_lm._keys_to_ignore_on_load_unexpected or ())
        """Patterns of what checkpoints hold beside the model, such as layers for multi-token prediction."""

    def forward(self, inputs: dict[str, Any], positions: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        """Summed cross-entropy of a micro-batch, or its logits.

        Args:
            inputs: `Batch.model_inputs()`.
            positions: int64 (S,), the flat positions that the loss counts; None asks for logits.
            targets: int64 (S,), the word that should come next at each.

        Returns:
            float32 scalar, or (B, T, words) in the compute dtype.
        """
        if self.delta_net is None:
            inputs = {key: value for key, value in inputs.items() if key not in DELTA_NET_KEYS}
        hidden = self.decoder(**inputs, use_cache=False).last_hidden_state
        return self.head(hidden, positions, targets)

    def tie(self) -> None:
        """Makes embedding and head one parameter again, after an operation that gave each its own storage."""
        if self.tied:
            self.head.linear.weight = self.embedding.weight

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.decoder.layers)

    @property
    def embedding(self) -> nn.Module:
        return self.decoder.embed_tokens

    @property
    def delta_net(self) -> DeltaNet | None:
        """How the Gated DeltaNet blocks project; None for a family without them."""
        return self.family.delta_net

    @property
    def delta_net_blocks(self) -> list[nn.Module]:
        """The Gated DeltaNet blocks, in layer order; empty for a family without them."""
        if self.delta_net is None:
            return []
        name = self.delta_net.attribute
        return [getattr(layer, name) for layer in self.blocks if hasattr(layer, name)]

    @property
    def float32_parameters(self) -> list[nn.Parameter]:
        """Those that compute in float32 whatever the recipe's dtypes are."""
        if self.delta_net is None:
            return []
        return [getattr(block, name) for block in self.delta_net_blocks for name in self.delta_net.float32]

    def transformers_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under the names that transformers and its checkpoints give them; tied ones once."""
        for name, parameter in self.named_parameters():
            yield transformers_name(name), parameter

    def transformers_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self.named_buffers():
            yield transformers_name(name), buffer


def transformers_name(name: str) -> str:
    """`decoder.layers.0...` -> `model.layers.0...`; the norm and projection of the head go back to their places."""
    for ours, theirs in (("head.norm.", "model.norm."), ("head.linear.", "lm_head."), ("decoder.", "model.")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise AssertionError(f"parameter {name} is in no part of a LanguageModel")
