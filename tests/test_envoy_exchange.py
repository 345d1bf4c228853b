"""What each message of a gateway is answered with, in every body mode. Whole values, no gateway."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.doors.envoy import contract
from coordinator.doors.envoy.exchange import PIECE_BYTES, Exchange, Terms
from coordinator.doors.envoy.following import Following, Interest
from coordinator.doors.envoy.messages import (
    Aborted,
    BodyMode,
    Continue,
    Effect,
    Finished,
    FirstToken,
    Headers,
    Immediate,
    Modes,
    Picked,
    Piece,
    Question,
    Refuse,
    Rejected,
    Said,
    Served,
    Unseen,
)
from coordinator.limits import Usage
from coordinator.refusal import BodyTooLarge, BodyTruncated

POST: Headers = ((":method", "POST"), (":path", "/v1/completions"), ("x-a", "b"))
PICKED = Picked(("1.1.1.1:8", "1.1.1.2:8"), set_headers=(("x-set", "1"),), remove_headers=("x-a",))
STRIPPED = tuple(sorted(contract.CONTROL | {"x-lineside-backend"}))
LIMIT = 1_000_000


def exchange(interest: Interest = Interest.NONE, limit: int = LIMIT) -> Exchange:
    def follow(picked: Picked) -> Following:
        return Following(interest, picked.endpoints, decision=picked.decision)

    return Exchange(Terms(limit, interest), follow)


def begin(
    request: BodyMode, response: BodyMode = BodyMode.NONE, *, ends: bool = False, **more: str
) -> Said:
    named = tuple((name.replace("_", "-"), value) for name, value in more.items())
    return Said("request_headers", (*POST, *named), ends=ends, modes=Modes(request, response))


def body(text: bytes, ends: bool = True) -> Said:
    return Said("request_body", body=text, ends=ends)


def asked(
    text: bytes | None, subset: frozenset[str] | None = None, readable: bool = False
) -> Question:
    return Question("POST", "/v1/completions", (("x-a", "b"),), text, subset, readable)


def sent_on(part: str, picked: Picked = PICKED, content: bytes | None = None) -> Continue:
    """The one answer that changes a request."""
    length = () if picked.body is None else (("content-length", str(len(picked.body))),)
    destination = ",".join(picked.endpoints)
    sets = (*picked.set_headers, (contract.DESTINATION, destination), *length)
    gone = {*STRIPPED, *picked.remove_headers} - {name for name, _ in sets}
    return Continue(part, sets, tuple(sorted(gone)), content, destination, reroute=True)  # type: ignore[arg-type]


def test_a_duplex_body_is_given_back_after_the_headers() -> None:
    one = exchange()
    assert one.take(begin(BodyMode.DUPLEX)) == ()
    assert one.take(body(b"ab", ends=False)) == ()
    assert one.take(body(b"c")) == (asked(b"abc"),)
    assert (one.is_asked, one.is_decided, one.is_done) == (True, False, False)
    assert one.picked(PICKED) == [
        sent_on("request_headers"),
        Piece("request_body", b"abc", True),
        Unseen(),
    ]
    assert (one.is_decided, one.is_done) == (True, True)
    assert one.left() == ()


def test_a_duplex_body_is_replaced_in_pieces() -> None:
    one = exchange()
    one.take(begin(BodyMode.DUPLEX))
    one.take(body(b"abc"))
    new = bytes(2 * PIECE_BYTES + 1)
    answers = one.picked(Picked(("e:1",), body=new))
    assert answers[0] == sent_on("request_headers", Picked(("e:1",), body=new))
    assert answers[1:-1] == [
        Piece("request_body", bytes(PIECE_BYTES), False),
        Piece("request_body", bytes(PIECE_BYTES), False),
        Piece("request_body", bytes(1), True),
    ]


def test_a_duplex_body_that_becomes_empty_has_its_end() -> None:
    one = exchange()
    one.take(begin(BodyMode.DUPLEX))
    one.take(body(b"abc"))
    assert one.picked(Picked(("e:1",), body=b""))[1] == Piece("request_body", b"", True)


def test_trailers_end_a_duplex_body() -> None:
    one = exchange()
    one.take(begin(BodyMode.DUPLEX))
    one.take(body(b"abc", ends=False))
    assert one.take(Said("request_trailers")) == (asked(b"abc"),)
    assert one.picked(PICKED) == [
        sent_on("request_headers"),
        Piece("request_body", b"abc", False),
        Continue("request_trailers"),
        Unseen(),
    ]


def test_a_last_piece_that_comes_twice_counts_once() -> None:
    one = exchange(Interest.USAGE)
    one.take(begin(BodyMode.DUPLEX))
    one.take(body(b"abc"))
    assert one.take(body(b"abc")) == ()
    one.picked(PICKED)
    assert one.take(body(b"abc")) == ()


@pytest.mark.parametrize("ends", [True, False], ids=["the end", "trailers follow"])
def test_a_buffered_body_carries_all_changes(ends: bool) -> None:
    one = exchange()
    assert one.take(begin(BodyMode.BUFFERED)) == (Continue("request_headers"),)
    assert one.take(body(b"abc", ends)) == (asked(b"abc"),)
    new = Picked(("e:1",), body=b"longer")
    assert one.picked(new) == [sent_on("request_body", new, b"longer"), Unseen()]


def test_a_part_of_a_buffered_body_is_refused() -> None:
    one = exchange()
    one.take(begin(BodyMode.BUFFERED_PARTIAL))
    assert one.take(body(b"abc", ends=False)) == (Refuse(BodyTruncated()),)


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED])
def test_what_is_sent_on_with_its_headers_is_decided_by_them(mode: BodyMode) -> None:
    one = exchange(Interest.USAGE)
    assert one.take(begin(mode)) == (asked(None),)
    changes = one.picked(Picked(("e:1",), body=b"nobody can change it"))
    assert changes == [sent_on("request_headers", Picked(("e:1",)))]
    assert one.take(body(b"abc", ends=False)) == (
        (Continue("request_body"),) if mode is BodyMode.STREAMED else ()
    )


@pytest.mark.parametrize("mode", BodyMode)
def test_a_request_without_a_body_is_decided_at_once(mode: BodyMode) -> None:
    one = exchange()
    assert one.take(begin(mode, ends=True)) == (asked(b""),)
    assert one.picked(PICKED) == [sent_on("request_headers"), Unseen()]


@pytest.mark.parametrize("mode", [BodyMode.DUPLEX, BodyMode.BUFFERED])
def test_a_body_beyond_the_limit_is_refused(mode: BodyMode) -> None:
    told = exchange(limit=3).take(begin(mode, content_length="4"))
    assert told == (Refuse(BodyTooLarge(3)),)
    one = exchange(limit=3)
    one.take(begin(mode, content_length="3"))
    assert one.take(body(b"abcd", ends=False)) == (Refuse(BodyTooLarge(3)),)


def test_a_rejection_is_the_clients_answer_without_headers_of_one_connection() -> None:
    one = exchange()
    one.take(begin(BodyMode.DUPLEX))
    rejected = Rejected(429, (("retry-after", "7"), ("connection", "close")), b"{}", "over_limit")
    assert one.rejected(rejected) == (Immediate(429, (("retry-after", "7"),), b"{}", "over_limit"),)
    assert one.is_done
    assert one.left() == ()


def test_a_provider_is_named_in_a_header_and_nowhere_else() -> None:
    one = exchange()
    one.take(begin(BodyMode.BUFFERED))
    one.take(body(b"abc"))
    answer = one.picked(Picked((), "openai", b"x"))[0]
    assert answer == Continue(
        "request_body",
        (("x-lineside-backend", "openai"), ("content-length", "1")),
        tuple(sorted(contract.CONTROL)),
        b"x",
        None,
        reroute=True,
    )


def test_clients_headers_for_pickers_are_not_seen() -> None:
    one = exchange()
    sent = {"x_lineside_backend": "a", "x_gateway_destination_endpoint": "1.1.1.1:1"}
    assert one.take(begin(BodyMode.NONE, **sent)) == (asked(None),)


@pytest.mark.parametrize(
    ("hint", "subset"),
    [
        pytest.param(["a:1", "b:2"], {"a:1", "b:2"}, id="a list"),
        pytest.param("a:1, b ,", {"a:1", "b"}, id="a string"),
        pytest.param([], set(), id="an empty list"),
        pytest.param([7], set(), id="no names"),
        pytest.param(None, None, id="none"),
    ],
)
def test_a_subset_is_read(hint: object, subset: set[str] | None) -> None:
    said = {contract.SUBSET_NAMESPACE: {contract.SUBSET: hint}} if hint is not None else {}
    modes = Modes(BodyMode.NONE, BodyMode.NONE)
    message = Said("request_headers", POST, modes=modes, metadata=said)
    expected = None if subset is None else frozenset(subset)
    assert exchange().take(message) == (asked(None, expected),)


def test_an_answer_of_the_gateways_own_is_passed_on() -> None:
    """It may end a request itself, before its body is here."""
    one = exchange()
    one.take(begin(BodyMode.BUFFERED))
    answers = one.take(Said("response_headers", ((":status", "413"),)))
    assert answers == [Continue("response_headers"), Finished(413, Usage())]
    assert one.is_done


EVENTS = (
    b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n',
    b"data: [DONE]\n\n",
)
HEAD = ((":status", "200"), ("content-type", "text/event-stream; charset=utf-8"))


def followed(interest: Interest, response: BodyMode) -> Exchange:
    one = exchange(interest)
    one.take(begin(BodyMode.DUPLEX, response))
    one.take(body(b"{}"))
    one.picked(Picked(("e:1", "e:2"), decision="d"))
    return one


def answered(one: Exchange, *pieces: bytes, ends: bool = True) -> list[Effect]:
    """Let an answer come by; return what followed."""
    metadata = {contract.NAMESPACE: {contract.SERVED: "e:2"}}
    effects = [*one.take(Said("response_headers", HEAD, metadata=metadata))]
    for at, piece in enumerate(pieces):
        last = ends and at == len(pieces) - 1
        effects += one.take(Said("response_body", body=piece, ends=last))
    return effects


SHOWN = Continue("response_headers", (("x-lineside-decision", "d"),))


def test_a_stream_that_must_be_given_back_is() -> None:
    effects = answered(followed(Interest.USAGE, BodyMode.DUPLEX), *EVENTS)
    assert effects == [
        Served("e:2", 1),
        SHOWN,
        Piece("response_body", EVENTS[0], False),
        FirstToken(),
        Piece("response_body", EVENTS[1], False),
        Piece("response_body", EVENTS[2], True),
        Finished(200, Usage(prompt_tokens=3, completion_tokens=1)),
    ]


def test_a_stream_that_comes_by_is_let_pass() -> None:
    effects = answered(followed(Interest.USAGE, BodyMode.STREAMED), *EVENTS)
    assert effects == [
        Served("e:2", 1),
        SHOWN,
        Continue("response_body"),
        FirstToken(),
        Continue("response_body"),
        Continue("response_body"),
        Finished(200, Usage(prompt_tokens=3, completion_tokens=1)),
    ]


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.NONE])
def test_of_an_answer_whose_head_is_wanted_no_more_is(mode: BodyMode) -> None:
    one = followed(Interest.SERVED, mode)
    assert answered(one) == [Served("e:2", 1), SHOWN, Unseen(200)]
    assert one.is_done
    assert one.left() == ()


def test_an_answer_that_must_be_given_back_is_even_where_nothing_is_wanted() -> None:
    one = followed(Interest.NONE, BodyMode.DUPLEX)
    assert answered(one, *EVENTS)[-2:] == [
        Piece("response_body", EVENTS[2], True),
        Finished(200, Usage()),
    ]


LEFT: Sequence[tuple[tuple[bytes, ...], Effect]] = [
    ((), Aborted(Usage(partial=True))),
    (EVENTS[:1], Aborted(Usage(completion_tokens=1, partial=True))),
    (EVENTS[:2], Aborted(Usage(completion_tokens=1, partial=True))),
]


@pytest.mark.parametrize(("pieces", "note"), LEFT, ids=["no content", "some", "all but the end"])
def test_a_client_that_leaves_is_charged_for_what_passed(
    pieces: tuple[bytes, ...], note: Effect
) -> None:
    one = followed(Interest.USAGE, BodyMode.STREAMED)
    if pieces:
        answered(one, *pieces, ends=False)
    assert one.left() == (note,)
    assert one.left() == ()


def test_a_client_that_leaves_before_any_content_has_left() -> None:
    """Engines send the head of a stream before its prefill."""
    one = followed(Interest.USAGE, BodyMode.STREAMED)
    answered(one)
    assert one.left() == (Aborted(Usage(completion_tokens=0, partial=True)),)


def test_one_that_watches_heads_alone_sees_no_end() -> None:
    one = exchange(Interest.USAGE)
    one.take(Said("request_headers", POST, observes=True))
    one.take(Said("response_headers", HEAD))
    assert one.left() == (Unseen(200),)


def test_one_that_only_watches_is_told_nothing() -> None:
    one = exchange(Interest.USAGE)
    sent = (*POST, (contract.DECISION, "d"))
    assert one.take(Said("request_headers", sent, observes=True)) == ()
    assert one.take(body(b"abc")) == ()
    assert one.is_decided
    assert answered(one, *EVENTS) == [
        Served("e:2", None),
        FirstToken(),
        Finished(200, Usage(prompt_tokens=3, completion_tokens=1)),
    ]
    assert one.following is not None
    assert one.following.decision == "d"


def cut(text: bytes, at: list[int]) -> list[bytes]:
    """Return a text in pieces, some of them perhaps empty."""
    borders = [0, *sorted(min(each, len(text)) for each in at), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


BORDERS = st.lists(st.integers(0, 400), max_size=12)


@given(size=st.integers(0, 400), at=BORDERS, trailers=st.booleans(), new=st.none() | st.binary())
def test_however_a_body_is_cut_it_is_sent_on_whole(
    size: int, at: list[int], trailers: bool, new: bytes | None
) -> None:
    one, text = exchange(Interest.USAGE), bytes(range(256)) * 2
    text = text[:size]
    one.take(begin(BodyMode.DUPLEX, BodyMode.DUPLEX))
    effects: list[Effect] = []
    pieces = cut(text, at)
    for number, piece in enumerate(pieces):
        effects += one.take(body(piece, ends=number == len(pieces) - 1 and not trailers))
    if trailers:
        effects += one.take(Said("request_trailers"))
    assert effects == [asked(text, readable=True)]
    answers = one.picked(Picked(("e:1",), body=new))
    sent = [each for each in answers if isinstance(each, Piece)]
    assert b"".join(piece.body for piece in sent) == (text if new is None else new)
    assert [piece.ends for piece in sent] == [False] * (len(sent) - 1) + [not trailers]
    assert (answers[-1] == Continue("request_trailers")) is trailers


@given(at=BORDERS, mode=st.sampled_from([BodyMode.DUPLEX, BodyMode.STREAMED]))
def test_however_an_answer_is_cut_it_passes_whole_and_is_counted(
    at: list[int], mode: BodyMode
) -> None:
    pieces = cut(b"".join(EVENTS), at)
    effects = answered(followed(Interest.USAGE, mode), *pieces)
    passed = [each for each in effects if isinstance(each, Piece | Continue)][1:]
    bodies = (
        each.body if each.body is not None else piece
        for each, piece in zip(passed, pieces, strict=True)
    )
    assert b"".join(bodies) == b"".join(EVENTS)
    notes = [each for each in effects if not isinstance(each, Piece | Continue)]
    usage = Usage(prompt_tokens=3, completion_tokens=1)
    assert notes == [Served("e:2", 1), FirstToken(), Finished(200, usage)]
