from __future__ import annotations

from typing import Any

import pytest
from support.models import CONFIGS

from sft_cli.errors import ModelError
from sft_cli.model.build import build_skeleton


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "foo"}, "KeyError: 'foo'"),
        ({"rope_parameters": {"rope_type": "foo", "rope_theta": 1e4}}, "KeyError: 'foo'"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps"),
        ({"pad_token_id": 5000}, "Padding_idx"),
    ],
)
def test_a_config_that_transformers_does_not_take(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"transformers can't build a model from its config: .*{message}") as caught:
        build_skeleton({**CONFIGS["llama"], **changes})
    assert "\n" not in caught.value.what
