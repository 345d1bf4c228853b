"""Bodies, answers and streams of one API in another's shape. Pure: see `requests`, `answers`."""
