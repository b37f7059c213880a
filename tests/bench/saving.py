"""What a save costs the loop, beside what it costs the disk: `python tests/bench/saving.py FOLDER [MIB]`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from sft_cli.checkpoint.commit import Target
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.checkpoint.state import training_generators
from sft_cli.checkpoint.verify import verify

_SIDE = 1024
_BYTES_PER_MATRIX = 12 * _SIDE * _SIDE
"""A float32 master and two moments."""


def main() -> None:
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 1200
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group(init_method=f"file://{folder}/store", rank=0, world_size=1)
    matrices = [nn.Linear(_SIDE, _SIDE, bias=False, device=device) for _ in range(mib * 2**20 // _BYTES_PER_MATRIX)]
    model = nn.Sequential(*matrices)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    target = Target(folder / "checkpoints", keep=1)
    saver = CheckpointSaver(target, model, optimizer, training_generators(device), device, lambda path: None)
    try:
        for step in (1, 2, 3):
            begin = time.perf_counter()
            saver.save(Progress(step, 0.0))
            copied = time.perf_counter() - begin
            saver.finish()
            whole = time.perf_counter() - begin
            print(f"save {step}: the loop waits {copied:.2f} s, the checkpoint is whole after {whole:.2f} s")
        begin = time.perf_counter()
        verify(folder / "checkpoints" / "step-00000003")
        print(f"verified in {time.perf_counter() - begin:.2f} s (its files are in the system's cache)")
    finally:
        dist.destroy_process_group()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
