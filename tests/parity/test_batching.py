"""A sample's logits and gradients don't depend on what it shares a micro-batch with."""

from __future__ import annotations

import pytest
import torch
from support.models import CONFIGS, REFERENCES, WORDS, make_model
from support.rows import random_rows
from torch import Tensor

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.data.rows import TokenizedRows
from sft_cli.model.build import build_skeleton
from sft_cli.model.language_model import LanguageModel

LENGTHS = [65, 2, 130, 64, 3, 40, 1]
"""Around multiples of the chunk of 64, and shorter than the conv is wide."""


@pytest.fixture(scope="module")
def rows() -> TokenizedRows:
    return random_rows(LENGTHS, words=WORDS)


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return make_model(request.param)


def logits_by_row(model: LanguageModel, batch: Batch, batching: str) -> list[Tensor]:
    with torch.no_grad():
        logits = model(batch.model_inputs())
    if batching == "padded":
        return [row[:length] for row, length in zip(logits, LENGTHS, strict=True)]
    return list(logits[0].split([*LENGTHS, logits.shape[1] - sum(LENGTHS)]))[: len(LENGTHS)]


def gradients(model: LanguageModel, batches: list[Batch]) -> dict[str, Tensor]:
    model.zero_grad()
    count = sum(batch.supervised_tokens for batch in batches)
    for batch in batches:
        (model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets) / count).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def batches_of(rows: TokenizedRows, batching: str) -> list[Batch]:
    everyone = list(range(len(rows)))
    return {
        "packed": lambda: [pack_rows(rows, everyone, sum(LENGTHS) + 50)],
        "packed without an empty end": lambda: [pack_rows(rows, everyone, sum(LENGTHS))],
        "padded": lambda: [pad_rows(rows, everyone)],
        "alone": lambda: [pad_rows(rows, [row]) for row in everyone],
    }[batching]()


@pytest.fixture(scope="module")
def logits_alone(model: LanguageModel, rows: TokenizedRows) -> list[Tensor]:
    with torch.no_grad():
        return [model(batch.model_inputs())[0] for batch in batches_of(rows, "alone")]


@pytest.fixture(scope="module")
def gradients_alone(model: LanguageModel, rows: TokenizedRows) -> dict[str, Tensor]:
    return gradients(model, batches_of(rows, "alone"))


@pytest.mark.parametrize("batching", ["packed", "packed without an empty end", "padded"])
def test_logits_are_those_of_each_row_alone(
    model: LanguageModel, rows: TokenizedRows, logits_alone: list[Tensor], batching: str
) -> None:
    together = logits_by_row(model, batches_of(rows, batching)[0], batching)
    for logits, alone in zip(together, logits_alone, strict=True):
        torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batching", ["packed", "packed without an empty end", "padded"])
def test_gradients_are_those_of_each_row_alone(
    model: LanguageModel, rows: TokenizedRows, gradients_alone: dict[str, Tensor], batching: str
) -> None:
    together = gradients(model, batches_of(rows, batching))
    for name, gradient in gradients_alone.items():
        torch.testing.assert_close(together[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_a_pack_without_segments_leaks(rows: TokenizedRows) -> None:
    """The comparison above sees a leak where there is one."""
    model = make_model("qwen3_5")
    batch = pack_rows(rows, [0, 2], 195)
    kept, dropped = batch.model_inputs(), batch.model_inputs()
    for key in ("cu_seq_lens_q", "segment_bounds", "seq_idx", "chunk_indices"):
        del dropped[key]
    with torch.no_grad():
        difference = (model(kept) - model(dropped))[0, 65:].abs().max()
    assert difference > 0.1


@pytest.mark.parametrize("loss", ["chunked", "torch"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_loss_backends_and_checkpointing_agree(rows: TokenizedRows, loss: str, checkpointing: str) -> None:
    """The chunked loss differs in the last bit of its gradient, which the gates of the delta rule magnify."""
    batches = batches_of(rows, "packed")
    expected = gradients(
        make_model("qwen3_5", kernels=REFERENCES.model_copy(update={"loss": "torch"}), checkpointing="none"), batches
    )
    found = gradients(
        make_model("qwen3_5", kernels=REFERENCES.model_copy(update={"loss": loss}), checkpointing=checkpointing),
        batches,
    )
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


def test_model_is_the_one_of_transformers(model: LanguageModel, rows: TokenizedRows) -> None:
    """Same weights, same tokens: our kernels against the whole model of transformers on an unpacked row."""
    config = next(config for config in CONFIGS.values() if config["model_type"] == model.config.model_type)
    reference = build_skeleton(config).to_empty(device="cpu")
    reference.tie_weights()
    state = dict(model.transformers_named_parameters()) | dict(model.transformers_named_buffers())
    with torch.no_grad():
        for name, tensor in [*reference.named_parameters(), *reference.named_buffers()]:
            tensor.copy_(state[name])
    batch = pad_rows(rows, [2])
    with torch.no_grad():
        expected = reference(batch.input_ids, use_cache=False).logits
        found = model(batch.model_inputs())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
