from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sft_cli.plan.chat_template import CHATML, find_chat_template
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import BUILTIN_TOKENIZERS, find_model
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import ModelSection, Recipe

MODEL = ModelSection(path="builtin:tiny-hybrid")


def folder_with(tmp_path: Path, *, template: bool = False, in_config: bool = False, tokens: bool = True) -> str:
    folder = tmp_path / "tokenizer"
    shutil.copytree(BUILTIN_TOKENIZERS / "tiny-hybrid", folder)
    if not template:
        (folder / "chat_template.jinja").unlink()
    if in_config:
        _change(folder / "tokenizer_config.json", lambda content: content.update(chat_template="{{ 1 }}"))
    if not tokens:
        _change(folder / "tokenizer.json", lambda content: content.update(added_tokens=content["added_tokens"][:1]))
    return str(folder)


def _change(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("where", "file"), [("template", "chat_template.jinja"), ("in_config", "tokenizer_config.json")]
)
def test_the_tokenizers_own(tmp_path: Path, where: str, file: str) -> None:
    choice = find_chat_template(MODEL, folder_with(tmp_path, **{where: True}))
    assert choice is not None
    assert (choice.key, choice.value, choice.because) == (
        "model.chat_template",
        None,
        f"the tokenizer's own, in {file}",
    )


def test_chatml_for_a_tokenizer_that_knows_its_tokens(tmp_path: Path, make_recipe: Callable[..., Recipe]) -> None:
    folder = folder_with(tmp_path)
    choice = find_chat_template(MODEL, folder)
    assert choice is not None
    assert (choice.value, "sftune's ChatML" in choice.because) == (str(CHATML), True)
    recipe = make_recipe()
    plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), folder, chat_template=choice)
    assert plan.recipe.model.chat_template == str(CHATML)
    assert choice in plan.choices


def test_the_default_renders_what_the_builtin_template_does() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN_TOKENIZERS / "tiny-hybrid")
    chat = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Why? "},
        {"role": "assistant", "content": "Because.\n"},
    ]
    for prompt in (False, True):
        texts = [
            tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, add_generation_prompt=prompt)
            for template in (None, CHATML.read_text())
        ]
        assert texts[0] == texts[1]


def test_none_where_nothing_is_known(tmp_path: Path) -> None:
    assert find_chat_template(MODEL, folder_with(tmp_path, tokens=False)) is None
    assert find_chat_template(MODEL, None) is None
    assert find_chat_template(MODEL, str(tmp_path / "empty")) is None


def test_a_template_of_the_recipe_is_no_choice(tmp_path: Path) -> None:
    named = ModelSection(path="builtin:tiny-hybrid", chat_template="mine.jinja")
    assert find_chat_template(named, folder_with(tmp_path)) is None
