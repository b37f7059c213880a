"""The tables of a report: events, evaluations, gate, data, plan, kernels. Everything from a file is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from sft_cli.telemetry.fields import number_text
from sft_cli.telemetry.html_parts import card, table
from sft_cli.telemetry.report.events import events_of
from sft_cli.telemetry.report.metrics import Series, number_of
from sft_cli.telemetry.report.run_files import Document, RunFiles, dig, objects

_MOST_EVALUATIONS = 200


def event_section(run: RunFiles) -> str:
    events = events_of(run)
    if not events:
        return ""
    rows = ([escape(event.when), f'<span class="{event.kind}">{escape(event.text)}</span>'] for event in events)
    return card("Events", ['<div class="scroll words">', table(("when", "what"), rows), "</div>"])


def evaluation_section(evaluations: Series) -> str:
    if not evaluations:
        return ""
    best = min(range(len(evaluations)), key=evaluations.values.__getitem__)
    first = max(0, len(evaluations) - _MOST_EVALUATIONS)
    rows = [
        [f"{evaluations.steps[at]:,}", f"{evaluations.values[at]:.4f}", "lowest" if at == best else ""]
        for at in range(first, len(evaluations))
    ]
    before = [f'<p class="quiet">The last {_MOST_EVALUATIONS} of {len(evaluations):,}.</p>'] if first else []
    body = table(("after step", "loss", ""), rows, numbers_from=0, own=best - first if best >= first else None)
    return card("Evaluations", [*before, f'<div class="scroll short">{body}</div>'])


def gate_section(exactness: Document) -> str:
    """Whether packed samples are as alone, by kind of layer."""
    if not exactness:
        return ""
    leak = exactness.get("leak")
    verdict = (
        f'<p class="bad">{escape(str(leak))}</p>'
        if leak
        else '<p><span class="good">Passed.</span> Samples that share a micro-batch are as each alone.</p>'
    )
    rows = []
    for kind in objects(exactness.get("kinds")):
        name = f"{_text(kind.get('kind'))}, {_text(kind.get('layers'))} layer{'' if kind.get('layers') == 1 else 's'}"
        for what, title in (("output", "outputs"), ("gradient", "gradients")):
            rows.append([name, title, *_difference(kind, what)])
    rows.append(["whole model", "logits", *_difference(exactness, "logits")])
    headings = ("", "compared", "relative difference", "tolerance")
    return card("Exactness gate", [verdict, table(headings, rows, numbers_from=2)])


def data_section(run: RunFiles) -> str:
    """What became of the rows of each source."""
    rows = []
    for part in ("train", "eval"):
        for source in objects(run.data.get(part)):
            dropped, changed = source.get("dropped"), source.get("changed")
            reasons = [f"left out, {_reasons(dropped)}"] if dropped else []
            reasons += [f"rendered without {_reasons(changed)}"] if changed else []
            counts = [_count(source.get(key)) for key in ("rows_in", "rows_out", "tokens", "supervised_tokens")]
            rows.append([part, _text(source.get("path")), _text(source.get("format")), *counts, "; ".join(reasons)])
    if rows:
        headings = ("", "source", "format", "rows in", "rows out", "tokens", "supervised", "")
        return card("Data", [f'<div class="words">{table(headings, rows, numbers_from=3)}</div>'])
    sources = [
        [part, _text(source.get("path"))]
        for part in ("train", "eval")
        for source in objects(dig(run.plan, "recipe", "data", part))
    ]
    if not sources:
        return ""
    note = "A stream's rows are counted while they are read." if dig(run.plan, "recipe", "data", "streaming") else ""
    return card("Data", [*([f'<p class="quiet">{note}</p>'] if note else []), table(("", "source"), sources)])


def plan_section(plan: Document) -> str:
    """Every choice with its reason, and the memory that was expected."""
    if not plan:
        return ""
    parts = list(_plan_facts(plan))
    choices = [
        [f"<code>{_text(choice.get('key'))}</code>", _text(choice.get("value")), _text(choice.get("because"))]
        for choice in objects(plan.get("choices"))
    ]
    if choices:
        parts.append(f'<div class="words">{table(("choice", "value", "because"), choices)}</div>')
    memory = dig(plan, "memory_gib")
    if isinstance(memory, dict):
        rows = [[_text(name), _number(gib)] for name, gib in memory.items()]
        moment = plan.get("memory_moment")
        title = f"Memory of one process, GiB, estimated{f', at the worst moment: {moment}' if moment else ''}"
        own = len(rows) - 1
        parts.append(f"<h3>{escape(title)}</h3>{table(('', 'GiB'), rows, numbers_from=1, own=own)}")
    return card("Plan", parts)


def kernel_section(kernels: Document) -> str:
    """What really runs in each slot."""
    rows = []
    for slot, entry in kernels.items():
        if isinstance(entry, dict):
            package = " ".join(str(entry[key]) for key in ("package", "version") if entry.get(key))
            inner = entry.get("inner")
            steps = (
                f" ({', '.join(f'{step}: {by}' for step, by in inner.items())})"
                if isinstance(inner, dict) and inner
                else ""
            )
            call = f"<code>{_text(entry.get('callable'))}{escape(steps)}</code>"
            call += "".join(f"<br><code>{_text(one.get('callable'))}</code>" for one in objects(entry.get("beside")))
            rows.append([_text(slot), _text(entry.get("asked")), _text(entry.get("got")), call, escape(package)])
    return card("Kernels", [table(("slot", "asked for", "got", "what runs", "package"), rows)]) if rows else ""


def recipe_section(run: RunFiles) -> str:
    """The recipe as the run has saved it."""
    if not run.recipe:
        return ""
    # A line break after <pre> is dropped by browsers.
    return card("Recipe", [f"<details><summary>recipe.yaml</summary><pre>\n{escape(run.recipe)}</pre></details>"])


def _plan_facts(plan: Document) -> Iterator[str]:
    world = dig(plan, "world")
    facts = []
    if isinstance(world, dict):
        device = world.get("gpu_name") or "CPU"
        facts.append(f"{_text(world.get('ranks'))} x {_text(device)}")
    if (parameters := number_of(dig(plan, "model", "parameters"))) is not None:
        facts.append(f"{parameters:,.0f} parameters")
    if (slots := number_of(plan.get("tokens_per_step"))) is not None:
        facts.append(f"{slots:,.0f} slots a step in {_text(plan.get('micro_batches_per_step'))} micro-batches")
    if (flops := number_of(plan.get("flops_per_token"))) is not None:
        facts.append(f"{flops / 1e9:,.3g} GFLOPs a token")
    if facts:
        yield f'<p class="quiet">{" · ".join(facts)}</p>'


def _difference(holder: Document, what: str) -> Sequence[str]:
    found, allowed = (number_of(holder.get(f"{what}_{name}")) for name in ("difference", "tolerance"))
    if found is None or allowed is None:
        return ["-", "-"]
    kind = "bad" if found > allowed else "good"
    return [f'<span class="{kind}">{found:.1e}</span>', f"{allowed:.1e}"]


def _reasons(counts: Any) -> str:
    if not isinstance(counts, dict):
        return _text(counts)
    return ", ".join(f"{_text(reason)}: {_count(count)}" for reason, count in counts.items())


def _count(value: Any) -> str:
    number = number_of(value)
    return "-" if number is None else f"{number:,.0f}"


def _number(value: Any) -> str:
    number = number_of(value)
    return "-" if number is None else number_text(number)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return number_text(value) if isinstance(value, float) else escape(str(value))
