"""bfloat16 on a GPU against float32 on a CPU, at the layer shapes of Qwen3.5-0.8B.

The measure is |found - expected| / |expected| over a whole tensor (2-norms). bfloat16 has 8 bits: one rounding is off
by up to 2^-9 = 0.2%, and the roundings in four layers add up like a random walk: 2.1% of the logits on an H200, with
either attention, packed or padded, and 4.3% of the worst parameter's gradient. Three and eight are allowed. A leak
between samples is more than ten times what is allowed in logits, as the last test shows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu.models import FAST, FASTEST, OWN, WORDS, gpu_model, reference_model
from support.rows import random_rows
from support.tensors import largest, whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.data.rows import TokenizedRows
from sft_cli.kernels.segments import Segments
from sft_cli.model.language_model import LanguageModel

LENGTHS = [65, 2, 130, 64, 3, 257, 1, 127]
"""Around multiples of the chunk of 64, and shorter than the convolution is wide."""
SLOTS = 768
ROUNDING = 0.03
"""Of logits in bfloat16."""
GRADIENT_ROUNDING = 0.08
"""Of a parameter's gradient."""


@pytest.fixture(scope="module")
def rows() -> TokenizedRows:
    return random_rows(LENGTHS, words=WORDS)


@pytest.fixture(scope="module")
def reference() -> LanguageModel:
    return reference_model()


@pytest.fixture(scope="module", params=[FAST, FASTEST, OWN], ids=["fla", "flash_qla and liger", "own"])
def model(reference: LanguageModel, mesh: DeviceMesh, request: pytest.FixtureRequest) -> LanguageModel:
    return gpu_model(reference, mesh, kernels=request.param)


def difference(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert found.isfinite().all()
    return float((found - expected).norm() / expected.norm())


def batch_of(rows: TokenizedRows, batching: str) -> Batch:
    everyone = list(range(len(rows)))
    return pack_rows(rows, everyone, SLOTS) if batching == "packed" else pad_rows(rows, everyone)


@torch.no_grad()
def logits_of(model: LanguageModel, batch: Batch) -> list[Tensor]:
    """Of each row, padding cut away."""
    logits = model(batch.to("cuda").model_inputs())
    if batch.cu_seq_lens is None:
        return [row[:length] for row, length in zip(logits, LENGTHS, strict=True)]
    return list(logits[0, : sum(LENGTHS)].split(LENGTHS))


@pytest.fixture(scope="module")
def expected(reference: LanguageModel, rows: TokenizedRows) -> list[Tensor]:
    """float32, each row alone, on the CPU."""
    return alone(reference, rows, "cpu")


@torch.no_grad()
def alone(model: LanguageModel, rows: TokenizedRows, device: str = "cuda") -> list[Tensor]:
    return [model(pad_rows(rows, [row]).to(device).model_inputs())[0] for row in range(len(rows))]


def report(what: str, differences: list[float], record: Callable[[str, object], None]) -> float:
    record(what, [f"{value:.2e}" for value in differences])
    print(f"\n{what}: largest {largest(differences):.2e}, by row {[f'{value:.1e}' for value in differences]}")
    return largest(differences)


@pytest.mark.parametrize("batching", ["packed", "padded"])
@pytest.mark.parametrize("attention", ["varlen", "sdpa"])
def test_logits_against_float32_on_the_cpu(
    reference: LanguageModel,
    mesh: DeviceMesh,
    rows: TokenizedRows,
    expected: list[Tensor],
    batching: str,
    attention: str,
    record_property: Callable[[str, object], None],
) -> None:
    model = gpu_model(reference, mesh, kernels=FAST.model_copy(update={"attention": attention}))
    found = logits_of(model, batch_of(rows, batching))
    differences = [difference(a, b) for a, b in zip(found, expected, strict=True)]
    assert report(f"{batching}, {attention}, against float32", differences, record_property) < ROUNDING


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_logits_against_each_row_alone(
    model: LanguageModel, rows: TokenizedRows, batching: str, record_property: Callable[[str, object], None]
) -> None:
    """Both in bfloat16 with the same kernels: only the tiles lie differently."""
    differences = [
        difference(a, b) for a, b in zip(logits_of(model, batch_of(rows, batching)), alone(model, rows), strict=True)
    ]
    assert report(f"{batching} against alone", differences, record_property) < ROUNDING / 2


def test_gradients_against_float32_on_the_cpu(
    reference: LanguageModel,
    model: LanguageModel,
    rows: TokenizedRows,
    record_property: Callable[[str, object], None],
) -> None:
    packed = batch_of(rows, "packed")
    found = gradients(model, packed.to("cuda"))
    expected = gradients(reference, packed)
    differences = {name: difference(found[name], expected[name]) for name in expected}
    worst = sorted(differences.items(), key=lambda item: -item[1])[:5]
    record_property("gradients", worst)
    print("\ngradients against float32, largest:", [f"{name} {value:.1e}" for name, value in worst])
    assert worst[0][1] < GRADIENT_ROUNDING


def gradients(model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
    (total / batch.supervised_tokens).backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


@pytest.mark.parametrize("positions", ["of each row", "through all rows"])
def test_a_leak_is_ten_times_what_rounding_does(
    model: LanguageModel, rows: TokenizedRows, expected: list[Tensor], positions: str
) -> None:
    """The tolerance can tell: all rows as one segment, with the right positions and with those of one long row."""
    inputs = batch_of(rows, "packed").to("cuda").model_inputs()
    one = Segments.of([SLOTS], "cuda")
    inputs |= {"cu_seq_lens_q": one.cu_seq_lens, "max_length_q": SLOTS}
    inputs |= {"segment_bounds": one.bounds, "seq_idx": one.seq_idx, "chunk_indices": one.chunk_indices}
    if positions == "through all rows":
        inputs["position_ids"] = torch.arange(SLOTS, device="cuda")[None]
    with torch.no_grad():
        logits = model(inputs)[0, : sum(LENGTHS)].split(LENGTHS)
    # The first row has nothing before it: it can't tell.
    differences = [difference(a, b) for a, b in zip(logits, expected, strict=True)][1:]
    assert max(differences) > 10 * ROUNDING
