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
from sft_cli.launch.log_files import rank_log
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.ranks import Ranks

STOPPING_SECONDS = 3.0
"""How long "wait" takes to stop when told to, as a save would."""
LAST_WORDS = "the last words"


def act(name: str, session: RankSession, others: list[tuple[Path, str]]) -> int:
    """Returns the signal that stopped it.

    Args:
        others: the logs of the other ranks and what these do.
    """
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
            # On a busy machine a rank may start seconds after another one, and has not gone before it was there.
            for log, what in others:
                last = LAST_WORDS if what == "killed" else "stdin holds"
                while not log.exists() or last not in log.read_text():
                    time.sleep(0.02)
            time.sleep(0.2 if name == "lost_peer" else 3.0)
            raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
        case "killed":
            print(LAST_WORDS, flush=True)
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
        acts = {int(rank): what for rank, what in json.loads(os.environ["WORKER_ACTS"]).items()}
        others = [(rank_log(options.logs, rank), what) for rank, what in acts.items() if rank != ranks.rank]
        session.stopped_by = act(acts[ranks.rank], session, others)


if __name__ == "__main__":
    main()
