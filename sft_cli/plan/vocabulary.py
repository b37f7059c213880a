"""Whether a model has a row for every token of its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from sft_cli.errors import ModelError
from sft_cli.plan.parameters import count_parameters
from sft_cli.plan.plan import ModelFacts
from sft_cli.recipe.places import Places


def count_token_ids(tokenizer_folder: Path) -> int | None:
    """One more than the largest token id in tokenizer.json; None where there is no such file.

    Raises:
        ModelError: the file is not a tokenizer's.
    """
    path = tokenizer_folder / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        largest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
        return 1 + max(int(token_id) for token_id in [largest, *(t["id"] for t in content.get("added_tokens", []))])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"not a tokenizer: {error!r}", where=str(path), fix="Take the file from its source again."
        ) from error


def fit_vocabulary(model: ModelFacts, tokenizer_folder: str | None, places: Places | None = None) -> ModelFacts:
    """The model with a row for every token id: random weights grow to the tokenizer, pretrained ones can't.

    Raises:
        ModelError: pretrained weights have fewer words than the tokenizer has ids.
    """
    ids = count_token_ids(Path(tokenizer_folder)) if tokenizer_folder is not None else None
    words = model.architecture().vocab_size
    if ids is None or ids <= words:
        return model
    if model.weights == "pretrained":
        raise ModelError(
            f"the tokenizer has token ids up to {ids - 1:,}, the model has {words:,} words",
            where=places.of("model.tokenizer") if places else "model.tokenizer",
            fix="Use the model's own tokenizer: leave model.tokenizer out.",
        )
    grown = model.model_copy(
        update={
            "config": {**model.config, "vocab_size": ids},
            "probed": None if model.probed is None else model.probed.with_vocabulary(ids),
        }
    )
    return grown.model_copy(
        update={
            "parameters": count_parameters(grown.architecture()).total,
            "because": f"{model.because}; vocab_size {words:,} grown to the tokenizer's {ids:,}",
        }
    )
