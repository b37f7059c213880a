"""What is trained: built on meta, filled from a seed or from safetensors, written back for Hugging Face."""
