"""What a run will be: facts of hardware and model, every `auto` resolved, memory and FLOPs. Imports no torch."""
