"""The `lineside` command. Sees all; nothing imports it."""
