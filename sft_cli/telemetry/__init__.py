"""What a run measures, and where it shows it. Imports no torch."""
