"""`make faults`: thirty kills, half an hour; tests/smoke/test_resume.py has two of them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.kills import killed_and_resumed, tensors, undisturbed

KILLS = int(os.environ.get("SFTUNE_KILLS", "30"))
SEED = int(os.environ.get("SFTUNE_KILLS_SEED", "0"))
STEPS = 3 * KILLS + 10
"""A start takes at most three steps before it is killed, more or less."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_at_random_moments_around_saves_nothing_is_lost(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole", STEPS)
    run, kills = killed_and_resumed(tmp_path / "killed", STEPS, KILLS, SEED)
    print(
        f"\n{len(kills)} kills, {sum(kill.unfinished for kill in kills)} of them while a checkpoint was being written:"
    )
    for victim, count in sorted(Counter(kill.victim for kill in kills).items()):
        print(f"  {victim}: {count}")
    assert tensors(run, STEPS) == tensors(whole, STEPS)
    assert (run / "export" / "model.safetensors").read_bytes() == (whole / "export" / "model.safetensors").read_bytes()
