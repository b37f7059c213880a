"""The layers that decide the speed: one file a slot, and a slow reference for each."""
