"""Checkpoints: their layout on disk, and how one is written whole or not at all."""
