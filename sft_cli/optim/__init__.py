"""The update: optimizer, schedule, clipping."""
