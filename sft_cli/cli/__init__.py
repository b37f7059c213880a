"""The commands, one file each. Nothing heavy is imported before a command needs it."""
