"""Joins the chats of a file to conversations as long as the longest pack.

    python tests/bench/long_rows.py CHATS.jsonl.gz LONG.jsonl.gz

`data.overlong: truncate` cuts each to the pack's length, so every pack is one row: what long rows cost.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHARACTERS = 200_000
"""Of a conversation: more than 32,768 tokens of English in any vocabulary."""

Messages = list[dict[str, Any]]


def joined(chats: list[Messages]) -> Iterator[Messages]:
    long: Messages = []
    for chat in random.Random(0).sample(chats, len(chats)):
        long += [message for message in chat if message["role"] != "system"]
        if sum(len(message["content"]) for message in long) > CHARACTERS:
            yield long
            long = []


if __name__ == "__main__":
    with gzip.open(Path(sys.argv[1]), "rt", encoding="utf-8") as file:
        read = [json.loads(line)["messages"] for line in file]
    with gzip.open(Path(sys.argv[2]), "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": messages}) + "\n" for messages in joined(read))
