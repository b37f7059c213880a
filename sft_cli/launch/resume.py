"""What workers are told to restore before their first step."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resume:
    checkpoint: Path
    """What the run goes on from."""
    replay_from: Path | None = None
    """An earlier or the same one, from which logged steps are replayed and compared first."""
    replay_steps: int = 0

    def arguments(self) -> list[str]:
        """Options of a worker's command line; `add_options` and `from_options` are their other end."""
        words = ["--resume-from", str(self.checkpoint)]
        if self.replay_from is not None:
            words += ["--replay-from", str(self.replay_from), "--replay-steps", str(self.replay_steps)]
        return words

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        parser.add_argument("--resume-from", type=Path, default=None)
        parser.add_argument("--replay-from", type=Path, default=None)
        parser.add_argument("--replay-steps", type=int, default=0)

    @classmethod
    def from_options(cls, options: Namespace) -> Resume | None:
        if options.resume_from is None:
            return None
        return cls(options.resume_from, options.replay_from, options.replay_steps)
