"""Properties are tried on the same examples in every run, so that a failure is the change's.

`make test-random` looks for new ones; what it finds becomes a test.
"""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile("fixed")
