"""The cluster's secret, which seeds every block key. Pure.

It is in the store. A coordinator that starts while the store is away has it of the first agent that
makes keys by it; until then no prompt has keys, and requests go by load alone.
"""

SECRET_BYTES = 32


class Secret:
    """What a coordinator knows of it. Written once, by whoever has it first."""

    def __init__(self, value: bytes | None) -> None:
        self.value = value
        """`None`: it is not known yet."""

    def __repr__(self) -> str:
        return f"Secret({'known' if self.value else 'not known'})"  # it stays out of logs

    def learn(self, value: bytes) -> bool:
        """Take it over where none is known; return whether that was so."""
        if self.value is not None:
            return False
        self.value = value
        return True
