"""Compiles the GPU kernels of a plan in several processes at once, before training compiles them one after another."""
