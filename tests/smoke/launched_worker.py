"""A worker without torch: does what `WORKER_ACTS` says for its rank.

WORKER_ACTS='{"0": "wait", "1": "data_error"}' python -m launched_worker --plan P --logs L [--control C]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from sft_cli.errors import DataError
from sft_cli.launch.control import ControlFolder
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.ranks import Ranks

STOPPING_SECONDS = 3.0
"""How long "wait" takes to stop when told to, as a save would."""


def act(name: str, session: RankSession) -> int:
    """Returns the signal that stopped it."""
    match name:
        case "finish":
            print("this line is for the log")
        case "wait":
            while not session.stop.requested:
                time.sleep(0.05)
            time.sleep(STOPPING_SECONDS)
        case "hang":
            while True:
                time.sleep(1)
        case "data_error":
            raise DataError("not a row", where="chat.jsonl:104", fix="Mend the row.")
        case "bug":
            raise ValueError("a bug")
        case "lost_peer" | "lost_peer_later":
            time.sleep(0.2 if name == "lost_peer" else 3.0)
            raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
        case "killed":
            time.sleep(0.2)
            print("the last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "vanish":
            os._exit(0)
    return session.stop.requested


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--control", type=Path)
    options = parser.parse_args()
    print("an early line")
    ranks = Ranks.from_environment(os.environ)
    control = ControlFolder(options.control) if options.control else None
    with RankSession(ranks, logs=options.logs, control=control) as session:
        if session.terminal is not None:
            print(f"terminal of rank {ranks.rank}", file=session.terminal, flush=True)
        print(f"stdin holds {len(sys.stdin.read())} characters")
        session.stopped_by = act(json.loads(os.environ["WORKER_ACTS"])[str(ranks.rank)], session)


if __name__ == "__main__":
    main()
