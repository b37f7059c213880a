"""Which keys of a recipe may change when a run is resumed: one table, and the comparison that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sft_cli.plan.plan import Plan


class MayChange(Enum):
    FREELY = "freely"
    """The numbers of the run don't depend on it."""
    TOLD = "told"
    """The run goes on, and is told what can't be the same."""
    NEVER = "never"
    """It would be another run."""


@dataclass(frozen=True)
class Rule:
    key: str
    """A key, or a section: the longest one that fits counts."""
    may_change: MayChange
    because: str


_ROUNDING = "the same mathematics in another order: numbers differ by rounding, not bit for bit"
_EVERY_STEP = "every step after it would be another one"
_ORDER = "it decides which rows make which step"
_TOKENS = "it decides what the tokens are"

RULES: tuple[Rule, ...] = (
    Rule("model", MayChange.NEVER, "the checkpoint holds the weights of this model, trained in these numbers"),
    Rule("data", MayChange.NEVER, _TOKENS),
    Rule("data.eval", MayChange.TOLD, "evaluation losses before and after are of other rows"),
    Rule("data.cache_dir", MayChange.FREELY, "only where tokens are kept"),
    Rule("batching", MayChange.NEVER, _ORDER),
    Rule("kernels", MayChange.TOLD, _ROUNDING),
    Rule("kernels.strict", MayChange.FREELY, "only what is refused"),
    Rule("kernels.hub", MayChange.FREELY, "what runs in a slot is compared"),
    Rule("kernels.float8", MayChange.NEVER, _EVERY_STEP),
    Rule("sharding", MayChange.TOLD, _ROUNDING),
    Rule("sharding.prefetch", MayChange.FREELY, "only when weights are gathered"),
    Rule("sharding.buffers", MayChange.FREELY, "only where they are gathered"),
    Rule("optimizer", MayChange.NEVER, _EVERY_STEP),
    Rule("schedule", MayChange.NEVER, _EVERY_STEP),
    Rule("train", MayChange.NEVER, _ORDER),
    Rule("train.epochs", MayChange.TOLD, "the schedule is that of the new number of steps; steps taken had the old"),
    Rule("train.max_steps", MayChange.TOLD, "the schedule is that of the new number of steps; steps taken had the old"),
    Rule("train.max_grad_norm", MayChange.NEVER, _EVERY_STEP),
    Rule("optimizer.offload", MayChange.FREELY, "only where moments wait"),
    Rule("evaluate", MayChange.FREELY, "evaluating changes nothing"),
    Rule("checkpoint", MayChange.FREELY, "saving changes nothing"),
    Rule("telemetry", MayChange.FREELY, "logging changes nothing"),
    Rule("launch", MayChange.FREELY, "only how processes are started"),
    Rule(
        "launch.gpus",
        MayChange.TOLD,
        "the order of the data is kept; sums over ranks round differently, and new ranks begin with new random states",
    ),
    Rule("launch.nodes", MayChange.TOLD, "as launch.gpus"),
    Rule("output_dir", MayChange.FREELY, "only where it is written"),
)


@dataclass(frozen=True)
class Difference:
    """Between the run that was saved and the one that would go on."""

    key: str
    before: Any
    now: Any
    rule: Rule

    def __str__(self) -> str:
        return f"{_shown(self.before)} in the checkpoint, {_shown(self.now)} now; {self.rule.because}"


def rule_of(key: str) -> Rule:
    """The rule of a key of the recipe: `data.train.0.path` has that of `data`."""
    fitting = [rule for rule in RULES if key == rule.key or key.startswith(f"{rule.key}.")]
    return max(fitting, key=lambda rule: len(rule.key))


def differences(before: Plan, now: Plan) -> list[Difference]:
    """What differs between two plans beside what may change freely, in the order of the recipe.

    Keys that the recipe left to `auto` are compared as they were resolved, but a warm-up as it was asked for: a share
    of the steps follows `train.max_steps` and `train.epochs`. The content of the data counts where both plans know it.
    """
    found = list(_different("", _as_compared(before), _as_compared(now)))
    if before.model.config != now.model.config:
        found.append(Difference("model.path", "a config.json", "another one", rule_of("model.path")))
    if None not in (before.rows_hash, now.rows_hash) and before.rows_hash != now.rows_hash:
        found.append(Difference("data.train", before.rows_hash, now.rows_hash, Rule("data", MayChange.NEVER, _CONTENT)))
    return [difference for difference in found if difference.rule.may_change is not MayChange.FREELY]


def _as_compared(plan: Plan) -> dict[str, Any]:
    recipe = plan.recipe.model_dump()
    if plan.warmup_asked is not None:
        recipe["schedule"]["warmup"] = plan.warmup_asked
    return recipe


_CONTENT = "the hash of all tokenised rows: a file, the tokenizer or the chat template holds something else"


def _different(key: str, before: Any, now: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() | now.keys() if before.keys() != now.keys() else before:
            yield from _different(f"{key}.{name}" if key else name, before.get(name), now.get(name))
    elif isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _different(f"{key}.{index}", one, other)
    elif before != now:
        yield Difference(key, before, now, rule_of(key))


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "none"
    if isinstance(value, dict):
        return str(value.get("path", value))
    return str(value)
