"""Events put into the order of blocks, for APIs in which one block follows another. Pure.

Backends may write several calls at once. The first block that is open goes out as it comes; what
belongs to others waits, until the first one is complete.
"""

from collections import deque
from collections.abc import Iterator

from coordinator.translate.collect import parsed
from coordinator.translate.events import (
    Argued,
    Called,
    Closed,
    Event,
    Said,
    Signed,
    Thought,
    Unreadable,
    Withheld,
)

HELD_CHARS = 8 * 2**20
"""Of one call's arguments, and of all that waits behind it; with more the answer is broken."""

HELD_CALLS, HELD_EVENTS = 128, 10_000
"""Of what waits behind an open call: clients name 128 tools at most. Each block that ends looks at
all of it again, so that this bounds what an answer can cost: about half a second."""


class InBlocks:
    """Gives every block as its beginning, its parts, and `Closed`."""

    def __init__(self) -> None:
        self.called = False
        """A call was begun."""
        self._kind: type[Event] | None = None
        self._call: int | None = None
        self._arguments: list[str] = []
        self._is_whole: bool | None = None
        self._waiting: list[Event] = []
        self._chars = 0

    def put(self, event: Event) -> Iterator[Event]:
        """Yield what may go out now. Takes parts of blocks, and `Closed`.

        Raises `Unreadable` where too much would have to wait.
        """
        coming = deque([event])
        if isinstance(event, Argued | Said | Thought):
            self._chars += len(event.text)
        if self._chars > HELD_CHARS and self._call is not None:
            raise Unreadable
        while coming:
            event = coming.popleft()
            if self._call is None or self._is_of_call(event):
                yield from self._take(event)
            elif not isinstance(event, Closed) and self.last_is_whole:
                coming.appendleft(event)
                yield from self._close()
            else:
                self._wait(event)
            if self._call is None:
                coming.extendleft(reversed(self._waiting))
                self._waiting = []

    def _wait(self, event: Event) -> None:
        self._waiting.append(event)
        if len(self._waiting) > HELD_EVENTS:
            raise Unreadable
        if isinstance(event, Called):
            calls = sum(isinstance(each, Called) for each in self._waiting)
            if calls > HELD_CALLS:
                raise Unreadable

    def end(self) -> Iterator[Event]:
        """Yield all that is left; the answer is over."""
        yield from self._close()
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                yield from self.put(event)
            yield from self._close()

    @property
    def last_is_whole(self) -> bool:
        """Whether the last call that was begun has all of its arguments; none are not all."""
        if self._is_whole is None:
            last = self._arguments[-1].rstrip() if self._arguments else ""
            self._is_whole = last.endswith("}") and parsed("".join(self._arguments)) is not None
        return self._is_whole

    def _is_of_call(self, event: Event) -> bool:
        return isinstance(event, Argued | Closed) and event.call == self._call

    def _take(self, event: Event) -> Iterator[Event]:
        """Let a part out; it begins a block where it does not go on with the open one."""
        match event:
            case Closed():
                yield from self._close()
            case Called(key):
                yield from self._close()
                self._kind, self._call, self.called = Called, key, True
                self._arguments, self._is_whole, self._chars = [], None, 0
                yield event
            case Argued(key, text) if key == self._call and text:
                self._arguments.append(text)
                self._is_whole = None
                yield event
            case Said("") | Thought("") | Signed("") | Argued():
                pass
            case _:
                kind = Thought if isinstance(event, Signed) else type(event)
                if self._kind is not kind or kind is Withheld:
                    yield from self._close()
                    if isinstance(event, Signed):
                        yield Thought("")
                self._kind = kind
                yield event

    def _close(self) -> Iterator[Event]:
        if self._kind is not None:
            yield Closed(self._call)
        self._kind, self._call = None, None
