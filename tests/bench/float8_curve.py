"""The loss of float8 training beside bfloat16's: the same recipe, rows and weights, each in a run of its own.

    python tests/bench/float8_curve.py configs/qwen0.8b-random.yaml --steps 200 --set data.train=/path/chats.jsonl

Needs a GPU with float8 products and torchao. Prints a table in Markdown, and how far the curves are apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

VARIANTS = {
    "bfloat16": ["kernels.compile=true"],
    "tensorwise": ["kernels.compile=true", "kernels.float8=tensorwise"],
    "rowwise": ["kernels.compile=true", "kernels.float8=rowwise"],
}


def train(recipe: str, folder: Path, steps: int, sets: list[str]) -> list[dict[str, float]]:
    """The run's lines of metrics.jsonl that are steps."""
    given = [f"train.max_steps={steps}", "checkpoint.enabled=false", f"output_dir={folder}", *sets]
    command = [sys.executable, "-m", "sft_cli", "train", recipe]
    subprocess.run([*command, *(part for one in given for part in ("--set", one))], check=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "loss" in line and "event" not in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        curves = {
            name: train(arguments.recipe, Path(root, name), arguments.steps, [*arguments.sets, *VARIANTS[name]])
            for name in arguments.variants
        }
    print(f"\n| step | {' | '.join(curves)} |\n|---|{'---|' * len(curves)}")
    for index in sorted({0, *range(9, arguments.steps, max(1, arguments.steps // 20)), arguments.steps - 1}):
        losses = [f"{curve[index]['loss']:.4f}" for curve in curves.values()]
        print(f"| {index + 1} | {' | '.join(losses)} |")
    first, *others = curves
    for name in others:
        gaps = [curve["loss"] - base["loss"] for curve, base in zip(curves[name], curves[first], strict=True)]
        last = gaps[len(gaps) // 2 :]
        mean, most = sum(last) / len(last), max(map(abs, gaps))
        print(f"{name} minus {first}: at most {most:.4f}, mean of the second half {mean:+.4f}")
    for name, curve in curves.items():
        speeds = sorted(line["tokens_per_second"] for line in curve[5:])
        print(f"{name}: {speeds[len(speeds) // 2]:,.0f} real tokens a second (median)")


if __name__ == "__main__":
    main()
