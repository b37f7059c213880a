"""What is sent to the host, what stays, and how much is on the device at a time; on a CPU, which makes plain copies."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.models import WORDS, make_model
from support.rows import random_rows
from torch import Tensor

from sft_cli.data.batch import pack_rows
from sft_cli.model.language_model import LanguageModel
from sft_cli.parallel import activation_offload
from sft_cli.parallel.activation_offload import ActivationOffload

MODES = ["none", "full", "selective"]


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1)


def loss_of(model: LanguageModel) -> Tensor:
    batch = pack_rows(random_rows([20, 44, 64, 5], words=WORDS), [0, 1, 2, 3], 140)
    return model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)


@contextmanager
def copies() -> Iterator[list[activation_offload._Copy]]:
    """Everything that is sent, in order."""
    sent: list[activation_offload._Copy] = []
    with pytest.MonkeyPatch.context() as patch:
        send = ActivationOffload._send

        def recording(offload: ActivationOffload, tensor: Tensor) -> activation_offload._Copy:
            sent.append(send(offload, tensor))
            return sent[-1]

        patch.setattr(ActivationOffload, "_send", recording)
        yield sent


def test_full_sends_the_input_of_every_layer_but_the_last() -> None:
    model = make_model("qwen3_5", checkpointing="full", offload=True)
    with copies() as sent:
        loss_of(model)
    assert [copy.there.numel() for copy in sent] == [140 * 64 * 4] * 3


@pytest.mark.parametrize("mode", MODES)
def test_after_forward_the_device_holds_one_offloaded_layer(mode: str) -> None:
    """The last that ran; backward wants it first, and takes it without a copy."""
    model = make_model("qwen3_5", checkpointing=mode, offload=True)
    with copies() as sent:
        loss = loss_of(model)
        ends = [copy.here is not None for copy in sent]
    assert loss.requires_grad
    assert any(ends)
    assert not any(ends[: ends.index(True)])
    assert all(ends[ends.index(True) :])
    a_layer = len(sent) / 3
    assert sum(ends) == pytest.approx(a_layer, rel=0.2)


@pytest.mark.parametrize("mode", MODES)
def test_in_backward_two_layers_are_on_the_device(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The one at work, and the one that backward comes to next."""
    model = make_model("qwen3_5", checkpointing=mode, offload=True)
    on_device = []
    unpack = ActivationOffload.unpack

    def watching(offload: ActivationOffload, packed: object) -> Tensor:
        tensor = unpack(offload, packed)
        found = [copy() for copy in alive]
        on_device.append(sum(copy is not None and copy.here is not None for copy in found))
        return tensor

    monkeypatch.setattr(ActivationOffload, "unpack", watching)
    with copies() as sent:
        loss = loss_of(model)
        alive = [weakref.ref(copy) for copy in sent]
        sent.clear()
    loss.backward()
    assert max(on_device) == pytest.approx(2 * len(alive) / 3, rel=0.2)
    assert all(copy() is None for copy in alive)


@pytest.mark.parametrize("mode", ["none", "selective"])
def test_weights_stay_and_views_of_one_storage_are_sent_once(mode: str) -> None:
    model = make_model("qwen3_5", checkpointing=mode, offload=True)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with copies() as sent:
        loss_of(model)
        here = [copy.here for copy in sent if copy.here is not None]
    addresses = [storage.untyped_storage().data_ptr() for storage in here]
    assert len(addresses) == len(set(addresses)) > 0
    assert not weights & set(addresses)


def test_weights_in_another_dtype_stay() -> None:
    """Autocast casts every matrix for the whole forward."""
    model = make_model("llama", checkpointing="none", offload=True)
    matrices = {tuple(p.shape) for p in model.blocks[0].parameters() if p.dim() > 1}
    kept: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        send = ActivationOffload._send
        patch.setattr(ActivationOffload, "_send", lambda offload, x: kept.append(x) or send(offload, x))
        loss = loss_of(model)
    loss.backward()
    assert kept
    shapes = {tuple(x.shape) for x in kept} | {tuple(x.t().shape) for x in kept if x.dim() == 2}
    assert not matrices & shapes


def test_small_tensors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 140 * 64 * 4 + 1)
    model = make_model("qwen3_5", checkpointing="full", offload=True)
    with copies() as sent:
        loss_of(model).backward()
    assert sent == []


def test_without_gradients_nothing_is_sent() -> None:
    model = make_model("qwen3_5", checkpointing="none", offload=True)
    with copies() as sent, torch.no_grad():
        loss_of(model)
    assert sent == []
