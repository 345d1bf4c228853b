"""What an engine gets of a client's headers."""

from coordinator.dispatch import forwarded


def test_headers_are_the_clients_less_those_that_end_here() -> None:
    client = [
        ("Host", "gateway"),
        ("Connection", "keep-alive, X-Hop"),
        ("Connection", "X-Leap"),
        ("X-Hop", "1"),
        ("X-Leap", "1"),
        ("Authorization", "Bearer key"),
        ("Api-Key", "key"),
        ("Content-Length", "3"),
        ("Content-Type", "application/json; charset=utf-8"),
        ("Accept-Encoding", "gzip"),
        ("X-Request-Id", "theirs"),
        ("X-Lineside-Decision", "forged"),
        ("X-Session-ID", "s"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
    ]
    assert sorted(forwarded(client, "ours").items()) == [
        ("Content-Type", "application/json; charset=utf-8"),
        ("X-Session-ID", "s"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("accept-encoding", "identity"),
        ("x-request-id", "ours"),
    ]


def test_a_body_without_a_type_is_json() -> None:
    assert forwarded([], "r")["content-type"] == "application/json"
