"""Keys of other tools: each is answered, and no answer hides a key of sftune's."""

from __future__ import annotations

import re

import pytest

from sft_cli.recipe.foreign_keys import FOREIGN_KEYS
from sft_cli.recipe.keys import keys, sections
from sft_cli.recipe.layer import Layer
from sft_cli.recipe.overrides import apply_override

COMMON = """
    lora adapter peft load_in_4bit deepspeed fsdp gradient_accumulation_steps per_device_train_batch_size
    micro_batch_size sample_packing packing num_train_epochs max_seq_length sequence_len base_model
    model_name_or_path datasets lr learning_rate_scheduler bf16 fp16 gradient_checkpointing flash_attention
    eval_steps save_steps save_total_limit wandb report_to warmup_ratio lr_scheduler_type val_set_size
"""


@pytest.mark.parametrize("name", COMMON.split())
def test_the_common_ones_are_known(name: str) -> None:
    assert FOREIGN_KEYS[name].what
    assert FOREIGN_KEYS[name].fix


def test_none_is_a_key_of_sftune_too() -> None:
    own = {name for section in sections().values() for name in section.model_fields}
    assert not own & set(FOREIGN_KEYS)


def test_every_key_an_answer_names_exists() -> None:
    known = {".".join(path) for path in [*keys(), *sections()]}
    for answer in FOREIGN_KEYS.values():
        for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", answer.what):
            assert name in known, name


def test_every_snippet_in_a_remedy_is_a_recipe_that_sftune_knows() -> None:
    for answer in FOREIGN_KEYS.values():
        for section, body in re.findall(r"`([a-z_]+): (\{.+?\}+)`", answer.fix):
            for key in apply_override(Layer({}), f"{section}={body}", 0).values[section]:
                assert (section, key) in keys() or (section, key) in sections(), answer.fix
