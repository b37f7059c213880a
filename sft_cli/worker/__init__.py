"""One rank of a run: `python -m sft_cli.worker`. Begin with `run.py`, the only place where all rooms meet."""
