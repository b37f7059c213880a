"""What the user wrote: a YAML file as a frozen, checked value, with the line that each key stands on."""
