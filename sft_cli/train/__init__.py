"""The training loop. Begin with `loop.py`."""
