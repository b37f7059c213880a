"""Makes `tiny-hybrid/tokenizer.json`: byte-level BPE, 1,024 tokens, trained on `builtin:chat` and the prose below.

Run `python -m sft_cli.data.builtin.make_tokenizer [FOLDER]` after changing the conversations. The same version of
the `tokenizers` library (`MADE_WITH`) writes the same bytes every time. The pre-tokenizer and the normalizer are
Qwen3.5's, so that a class which rebuilds them from the architecture's name changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from sft_cli.data.builtin_chat import generate

MADE_WITH = "0.23.3"
VOCABULARY = 1024
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PROSE = """
The morning was cold and clear when the two of them set out along the river. They had bread, water and an old map,
and they thought that they would be home before the light was gone. There is always more road than one expects.
A good tool does one thing and says what it did. When something goes wrong it tells you where, why, and what to do
about it; when nothing goes wrong it keeps quiet. People who write such tools have usually been hurt by others.
Water boils at one hundred degrees at the level of the sea, and at less than that on a mountain, because the air
presses on it with less weight. You can see this for yourself if you take a pot, a stove and a long walk upwards.
She asked whether the shop would be open on the weekend, and he said that it would, but only until noon. So they went
early, bought some flowers for her mother, and came back with more things than they had meant to buy.
To train a model means to show it many examples and to change its numbers a little after each of them, so that its next
answer is less wrong than the last. With enough examples it may even learn what it has not been shown.
If you want to know how long something takes, measure it. If you want to know how long it will take tomorrow, measure
it again. Numbers which nobody has checked are stories, and some stories are about people who never lived.
Children often ask the best questions: why is the sky blue, where does the sun go at night, how do birds know the way?
Most of us stopped asking because someone told us, once, that there was no time for an answer.
In the first year of the school we had three rooms and one teacher. She taught us to read, to write, to count and to
sing, and after lunch we would work in the garden with everybody else. I still think of it as the best of places.
Could you please help me with this problem? I have tried to solve it twice, but I do not understand the second part.
Of course. Let us look at it together, step by step, and see what is given, what is asked for, and what is between.
Here is a list of what we need: flour, sugar, butter, two eggs, a little salt, and about half a cup of milk. Mix all of
it well, let it rest for an hour, and bake it until the top is brown. It should make enough for six persons.
The number of words in a language is not known, since new ones are made each day and old ones are slowly forgotten.
"""


def _corpus() -> Iterator[str]:
    for row in generate("train"):
        for message in row["messages"]:
            yield f"{message['role']}\n"
            yield message["content"]
    yield from PROSE.strip().splitlines()


def make_tokenizer() -> Tokenizer:
    """Train the tokenizer: ids 0 to 2 are `SPECIAL_TOKENS`, then the 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tiny-hybrid"
    make_tokenizer().save(str(folder / "tokenizer.json"))
