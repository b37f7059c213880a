"""From one command to one process a rank, and back to one exit code. Imports no torch."""
