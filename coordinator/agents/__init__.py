"""Agents' streams: what they say is taken in by one writer, and what is due to them goes out."""
