"""Pieces of a row are its text, whatever the tokenizer makes of a character."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sft_cli.data.pieces import open_decoder, split_text

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
SHARED = Path(__file__).parents[4] / "shared" / "tokenizers"
TEXT = "Grüße, 世界! 👩‍👧 naïve\n\n  x = {'a': 1}\t<|im_end|> end"


@pytest.mark.parametrize("folder", [BUILTIN, *(SHARED / name for name in ("bpe_4096", "bpe_32768", "qwen3_5"))])
def test_pieces_are_the_text(folder: Path) -> None:
    if not folder.exists():
        pytest.skip(f"{folder} is not here")
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    decoder = open_decoder(str(folder), trust_remote_code=False)
    pieces = decoder.pieces(ids, [0, *[1] * (len(ids) - 1)])
    assert "".join(piece.text for piece in pieces) == decoder.text(ids) == TEXT
    assert [token for piece in pieces for token in piece.token_ids] == ids
    assert [piece.text for piece in pieces if piece.special] == ["<|im_end|>"]
    assert not any("\ufffd" in piece.text for piece in pieces)


@given(st.text(max_size=40))
def test_any_text(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))
    decoder = open_decoder(str(BUILTIN), trust_remote_code=False)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(piece.text for piece in decoder.pieces(ids, [1] * len(ids))) == decoder.text(ids)


def test_a_tokenizer_that_drops_the_first_space_loses_none() -> None:
    """As SentencePiece's do: the space before a word is its token's, and goes at the beginning of a text."""
    words = ["▁one", "▁two", "s", "▁three"]

    def decode(ids: list[int]) -> str:
        return "".join(words[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert [text for _, _, text in split_text(range(4), decode)] == ["one", " two", "s", " three"]


def test_supervised_flags() -> None:
    decoder = open_decoder(str(BUILTIN), trust_remote_code=False)
    ids = Tokenizer.from_file(str(BUILTIN / "tokenizer.json")).encode("a b c", add_special_tokens=False).ids
    pieces = decoder.pieces(ids, [1] * len(ids))
    assert [piece.supervised for piece in pieces] == [False, *[True] * (len(ids) - 1)]  # the first is never a target


def test_blank_tokens() -> None:
    decoder = open_decoder(str(BUILTIN), trust_remote_code=False)
    ids = Tokenizer.from_file(str(BUILTIN / "tokenizer.json")).encode("a\n<|im_end|>\n", add_special_tokens=False).ids
    assert [decoder.is_blank(token_id) for token_id in [*ids, 10**6]] == [False, True, False, True, False]


def test_an_id_that_the_tokenizer_lacks_has_a_name() -> None:
    assert open_decoder(str(BUILTIN), trust_remote_code=False).token(10**6) == "<token 1000000>"


def test_such_an_id_does_not_vanish_from_a_row() -> None:
    pieces = open_decoder(str(BUILTIN), trust_remote_code=False).pieces([10**6, 40], [0, 1])
    assert pieces[0].text == "<token 1000000>"


def test_a_tokenizer_without_tokenizer_json(tmp_path: Path) -> None:
    """Older folders hold a vocabulary and merges; transformers makes a fast tokenizer of them."""
    model = json.loads((BUILTIN / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    config = {"tokenizer_class": "Qwen2Tokenizer", "unk_token": None, "bos_token": None, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": "<|im_end|>"}))
    decoder = open_decoder(str(tmp_path), trust_remote_code=False)
    ids = [model["vocab"][letter] for letter in "abc"]
    assert decoder.text(ids) == "abc"
    assert "<|im_end|>" in {decoder.token(token) for token in decoder.special_ids}
