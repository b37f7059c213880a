"""sftune: fine-tunes language models from one YAML recipe. Begin with `cli/train.py`, then `worker/run.py`."""

__version__ = "0.1.0"
