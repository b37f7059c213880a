from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.data.builtin.make_tokenizer import MADE_WITH, VOCABULARY, make_tokenizer
from sft_cli.data.builtin_chat import generate

FOLDER = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(FOLDER)


def test_vocabulary_and_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == VOCABULARY == 1024
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)


@pytest.mark.parametrize("text", ["Hello!", "wörld 日本語 😀🇩🇪", " \n\n\t x  ", "a\u2028b", "12345 + 1 = 2", "\x00"])
def test_any_text_survives(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_builtin_conversations_are_short(tokenizer: PreTrainedTokenizerFast) -> None:
    lengths = [len(tokenizer.apply_chat_template(row["messages"])["input_ids"]) for row in generate("heldout")]
    assert max(lengths) <= 128
    assert sum(lengths) / len(lengths) < 90


def test_the_template_supervises_answers_and_their_end(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = [{"role": "user", "content": "Who am I?"}, {"role": "assistant", "content": "Your name is Ada."}]
    encoded = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    supervised = [token for token, on in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if on]
    assert tokenizer.decode(supervised) == "Your name is Ada.<|im_end|>"


@pytest.mark.skipif(version("tokenizers") != MADE_WITH, reason=f"the file was made with tokenizers {MADE_WITH}")
def test_the_script_makes_the_file_that_ships(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert (tmp_path / "tokenizer.json").read_bytes() == (FOLDER / "tokenizer.json").read_bytes()
