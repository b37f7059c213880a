"""`builtin:chat`: short conversations that a tiny model can learn, generated from a seed.

A user tells two facts (a name and a pet, a colour and a town, ...), and asks for them back later, between questions
of general knowledge (opposites, the next day, small sums). To answer, a model has to read the conversation: facts are
paired at random, so nothing can be learned by heart about which name goes with which town.

The held-out part is made of pairs of facts that never stand together in the training part. A held-out
conversation pairs values at the same place of their lists (`FACTS`); a training conversation never does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

TRAIN_ROWS = 2000
HELDOUT_ROWS = 200

Message = dict[str, str]
Row = dict[str, list[Message]]

SYSTEM_PROMPT = "You are a kind helper."
SYSTEM_SHARE = 0.25

FACTS: dict[str, tuple[str, ...]] = {
    "name": ("Ada", "Ben", "Cora", "Dan", "Ella", "Finn", "Gina", "Hugo"),
    "town": ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Bern"),
    "colour": ("red", "blue", "green", "black", "white", "pink", "brown", "gold"),
    "pet": ("Rex", "Luna", "Max", "Bella", "Coco", "Milo", "Daisy", "Rocky"),
}
"""Values by kind of fact, the same number of each; a value's place decides which others it is held out with."""

STATEMENTS: dict[str, tuple[str, ...]] = {
    "name": ("My name is {}.", "I am {}."),
    "town": ("I live in {}.", "My town is {}."),
    "colour": ("I like the colour {}.", "My best colour is {}."),
    "pet": ("My dog is called {}.", "I have a dog called {}."),
}
REPLIES = {
    "name": "Hello {}!",
    "town": "I know {}.",
    "colour": "Yes, {} is nice.",
    "pet": "Good dog {}!",
}
QUESTIONS: dict[str, tuple[str, ...]] = {
    "name": ("What is my name?", "Who am I?"),
    "town": ("Where do I live?", "What is my town?"),
    "colour": ("What colour do I like?", "What is my best colour?"),
    "pet": ("What is my dog called?", "Who is my dog?"),
}
ANSWERS = {
    "name": "Your name is {}.",
    "town": "You live in {}.",
    "colour": "You like {}.",
    "pet": "Your dog is called {}.",
}

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("day", "night"), ("up", "down"), ("old", "new"), ("fast", "slow"),
    ("good", "bad"), ("open", "closed"), ("full", "empty"), ("left", "right"), ("wet", "dry"), ("happy", "sad"),
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
PLURALS = (
    ("cat", "cats"), ("mouse", "mice"), ("child", "children"), ("book", "books"), ("foot", "feet"), ("man", "men"),
    ("tree", "trees"), ("leaf", "leaves"), ("tooth", "teeth"), ("car", "cars"),
)  # fmt: skip
SOUNDS = (("cat", "meow"), ("dog", "woof"), ("cow", "moo"), ("duck", "quack"), ("sheep", "baa"), ("lion", "roar"))


def _ask_opposite(rng: random.Random) -> tuple[str, str]:
    word, other = rng.choice(OPPOSITES)
    return f"What is the opposite of {word}?", f"The opposite of {word} is {other}."


def _ask_next_day(rng: random.Random) -> tuple[str, str]:
    day = rng.randrange(len(DAYS))
    return f"What day comes after {DAYS[day]}?", f"The day after {DAYS[day]} is {DAYS[(day + 1) % len(DAYS)]}."


def _ask_next_month(rng: random.Random) -> tuple[str, str]:
    month = rng.randrange(len(MONTHS))
    following = MONTHS[(month + 1) % len(MONTHS)]
    return f"What month comes after {MONTHS[month]}?", f"The month after {MONTHS[month]} is {following}."


def _ask_sum(rng: random.Random) -> tuple[str, str]:
    left, right = rng.randrange(1, 6), rng.randrange(1, 5)
    return f"What is {left} + {right}?", f"{left} + {right} = {left + right}."


def _ask_plural(rng: random.Random) -> tuple[str, str]:
    one, many = rng.choice(PLURALS)
    return f"One {one}, two what?", f"Two {many}."


def _ask_sound(rng: random.Random) -> tuple[str, str]:
    animal, sound = rng.choice(SOUNDS)
    return f"What does a {animal} say?", f"A {animal} says {sound}."


KNOWLEDGE: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    _ask_opposite, _ask_next_day, _ask_next_month, _ask_sum, _ask_plural, _ask_sound,
)  # fmt: skip


def generate(split: Literal["train", "heldout"], *, seed: int = 0) -> list[Row]:
    """Generate the conversations of one split as rows of `{"messages": [...]}`.

    The same seed gives the same rows on every Python from 3.11 on.

    Args:
        split: `train` (`TRAIN_ROWS` rows) or `heldout` (`HELDOUT_ROWS` rows, other pairs of facts).
        seed: which conversations.
    """
    rng = random.Random(f"sftune builtin:chat {split} {seed}")
    rows = TRAIN_ROWS if split == "train" else HELDOUT_ROWS
    return [_conversation(rng, held_out=split == "heldout") for _ in range(rows)]


def _draw_facts(rng: random.Random, *, held_out: bool) -> list[tuple[str, str]]:
    """Two facts of different kinds: at the same place of their lists when held out, else at two places."""
    first, second = rng.sample(sorted(FACTS), 2)
    place = rng.randrange(len(FACTS[first]))
    other = place if held_out else (place + rng.randrange(1, len(FACTS[second]))) % len(FACTS[second])
    return [(first, FACTS[first][place]), (second, FACTS[second][other])]


def _conversation(rng: random.Random, *, held_out: bool) -> Row:
    facts = _draw_facts(rng, held_out=held_out)
    turns: list[tuple[str, str]] = []
    if rng.random() < 0.7:
        told = " ".join(rng.choice(STATEMENTS[kind]).format(value) for kind, value in facts)
        turns.append((told, " ".join(REPLIES[kind].format(value) for kind, value in facts)))
    else:
        turns += [(rng.choice(STATEMENTS[kind]).format(value), REPLIES[kind].format(value)) for kind, value in facts]
    if rng.random() < 0.3:
        turns.append(rng.choice(KNOWLEDGE)(rng))
    recalled = rng.sample(facts, 2)
    turns += [(rng.choice(QUESTIONS[kind]), ANSWERS[kind].format(value)) for kind, value in recalled]

    messages = [{"role": "system", "content": SYSTEM_PROMPT}] if rng.random() < SYSTEM_SHARE else []
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}
