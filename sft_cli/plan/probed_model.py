"""What a child process found out about a model without a family file, by building it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.model_types import GENERIC


class ProbedLayer(BaseModel):
    """One decoder layer, in parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    total: int
    matmul: int
    """Those that every token's vector is multiplied by; of experts only as many as a token takes."""
    window: int | None
    """Tokens that a token attends to, itself included; None where it attends to all before it."""


class ProbedModel(BaseModel):
    """Counts and sizes of the model as transformers builds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    key_value_heads: int
    head_dim: int
    tied_embeddings: bool
    embedding: int
    layers: tuple[ProbedLayer, ...]
    final_norm: int
    checked: str
    """What was compared on a small copy, and how close it came: a reason for the plan."""

    def with_vocabulary(self, words: int) -> ProbedModel:
        """The same model with another number of words."""
        return self.model_copy(update={"vocab_size": words, "embedding": self.embedding // self.vocab_size * words})

    def architecture(self) -> Architecture:
        """The shape that FLOPs, activations and memory are estimated from: as a plain decoder of these sizes."""
        layers = len(self.layers)
        return Architecture(
            family=GENERIC,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            swiglu=False,
            linear_attention=(False,) * layers,
            windows=tuple(layer.window for layer in self.layers),
            sparse=(False,) * layers,
            heads=self.heads,
            key_value_heads=self.key_value_heads,
            head_dim=self.head_dim,
            gated_attention=False,
            head_norms=False,
            norms_per_layer=2,
            query_key_value_bias=False,
            output_bias=False,
            mlp_bias=False,
            tied_embeddings=self.tied_embeddings,
            delta_net=None,
            experts=None,
            probed=self,
        )
