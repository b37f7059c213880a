"""Asks a trained model what it was never trained on, and the same model before training.

    python docs/ask.py runs/tiny [--conversations 100]

Prints the first answers side by side, then how many are right, word for word, over all held-out conversations.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from sft_cli.data.builtin_chat import generate
from sft_cli.model.build import build_skeleton
from sft_cli.model.weights import drawn_tensors
from sft_cli.plan.plan import Plan

SHOWN = 6
LONGEST_ANSWER_TOKENS = 24

Message = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with an export")
    parser.add_argument("--conversations", type=int, default=50, help="how many held-out conversations to ask")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    plan = Plan.read(options.run / "plan.json")
    tokenizer = AutoTokenizer.from_pretrained(options.run / "export")
    after = AutoModelForCausalLM.from_pretrained(options.run / "export")
    before = untrained(plan, after)
    questions = list(held_out_questions(options.conversations))
    right = {"before": 0, "after": 0}
    for number, (conversation, expected) in enumerate(questions):
        answers = {
            "before": answer(before, tokenizer, conversation) if number < SHOWN else "",
            "after": answer(after, tokenizer, conversation),
        }
        for name, text in answers.items():
            right[name] += text == expected
        if number < SHOWN:
            said = " / ".join(message["content"] for message in conversation if message["role"] == "user")
            print(f"user      {said}")
            print(f"before    {answers['before']}\nafter     {answers['after']}\nexpected  {expected}\n")
    print(f"{right['after']} of {len(questions)} held-out answers are right word for word after training")


def untrained(plan: Plan, like: PreTrainedModel) -> PreTrainedModel:
    """The model with the weights that the run began with."""
    model = type(like)(like.config)
    drawn = dict(drawn_tensors(build_skeleton(plan.model.config), seed=plan.recipe.train.seed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(drawn[name])
    return model


def held_out_questions(conversations: int) -> Iterator[tuple[list[Message], str]]:
    """(messages up to a question, the right answer) for the last question of each held-out conversation."""
    for row in generate("heldout")[:conversations]:
        yield row["messages"][:-1], row["messages"][-1]["content"]


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, conversation: list[Message]) -> str:
    inputs = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        tokens = model.generate(**inputs, max_new_tokens=LONGEST_ANSWER_TOKENS, do_sample=False)
    text = tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return " ".join(text.split())


if __name__ == "__main__":
    main()
