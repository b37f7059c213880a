"""Metrics to TensorBoard, MLflow, Weights & Biases and Trackio. Begin with `trackers.py`.

Each tracker runs in a process of its own (`process.py` on our side, `serve.py` on its): what it imports, how long it
hangs and what it raises is nothing to training.
"""
