"""A process of its own, told TRITON_INTERPRET=1: small models with sftune's own kernels in their places against those
of torch, packed, as JSON.

Written for `tests/parity/test_own_kernels.py`.
"""

from __future__ import annotations

import json
import sys

from torch import Tensor

from sft_cli.data.batch import pack_rows
from sft_cli.recipe.schema import KernelsSection
from support.models import REFERENCES, WORDS, make_model
from support.rows import random_rows
from support.tensors import off

LENGTHS = [9, 2, 23]
OWN = REFERENCES.model_copy(update={"conv": "sftune", "norm": "sftune"})


def gradients(family: str, kernels: KernelsSection, checkpointing: str) -> dict[str, Tensor]:
    """The loss and the gradient of each parameter, under `loss` and its name."""
    model = make_model(family, kernels=kernels, checkpointing=checkpointing)
    packed = pack_rows(random_rows(LENGTHS, words=WORDS), list(range(len(LENGTHS))), 40)
    loss = model(packed.model_inputs(), packed.supervised_positions, packed.supervised_targets)
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def compare(family: str, checkpointing: str) -> dict[str, float]:
    """How far loss and gradients are off."""
    expected, found = gradients(family, REFERENCES, "none"), gradients(family, OWN, checkpointing)
    assert found.keys() == expected.keys()
    return {name: off(found[name], expected[name]) for name in expected}


def main() -> None:
    """Of families and modes of activation checkpointing, in turn."""
    words = iter(sys.argv[1:])
    print(json.dumps({family: compare(family, mode) for family, mode in zip(words, words, strict=True)}))


if __name__ == "__main__":
    main()
