"""A rank's session without its hold on this process's output and signals."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from sft_cli.launch.event_log import EventLog
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.stop import StopRequest


@dataclass
class Session:
    """What a worker needs of `RankSession`."""

    ranks: Ranks = field(default_factory=lambda: Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1))
    stop: StopRequest = field(default_factory=StopRequest)
    began: float = field(default_factory=time.time)
    terminal: None = None
    events: EventLog = field(default_factory=lambda: EventLog(Path(os.devnull)))
