"""Loading the tokenizer. Imports transformers, so it is imported only where tokens are not in the cache yet."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.errors import ModelError


def load_tokenizer(folder: str | None, *, trust_remote_code: bool) -> PreTrainedTokenizerFast:
    """Load a fast tokenizer from a local folder.

    Raises:
        ModelError: there is none, it needs code that is not trusted, or it is a slow one, which can't say which
            characters a token stands for.
    """
    if folder is None:
        raise ModelError(
            "no tokenizer is at hand", where="model.tokenizer", fix="Set model.tokenizer to a folder or hub id."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # files that don't fit raise anything, and so does code of the tokenizer's own
        raise ModelError(
            f"the tokenizer can't be loaded: {str(error) or type(error).__name__}",
            where=f"model.tokenizer ({folder})",
            fix="Check the folder.",
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            "a slow tokenizer, which can't say which characters a token stands for",
            where=f"model.tokenizer ({folder})",
            fix="Use a model with a tokenizer.json.",
        )
    return tokenizer
