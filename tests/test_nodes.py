"""YAML and JSON become nodes with places; what is broken or too much is one finding, in time."""

import pytest

from lineside.nodes import FOREIGN, MAX_BYTES, MAX_NODES, parse, plain


def told(document: bytes) -> str:
    parsed = parse(document, "p.yaml")
    assert parsed.findings
    return "\n".join(str(finding) for finding in parsed.findings)


def read(text: str) -> list[object]:
    parsed = parse(text.encode(), "p.yaml")
    assert parsed.findings == []
    return [plain(document) for document in parsed.documents]


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("# only words\n---\n---\n", [], id="documents without a value"),
        pytest.param(
            "a: 1\n---\n[b, 2.5, true, ~]\n", [{"a": 1}, ["b", 2.5, True, None]], id="two"
        ),
        pytest.param(
            '{"a": [1e3, -2E-1], "b": "1e3"}', [{"a": [1000.0, -0.2], "b": "1e3"}], id="JSON"
        ),
        pytest.param("\ufeffa: ü", [{"a": "ü"}], id="a byte order mark"),
        pytest.param("a: &x [1]\nb: *x\n", [{"a": [1], "b": [1]}], id="an alias"),
        pytest.param("a: 1\r\nb: 2\r\n", [{"a": 1, "b": 2}], id="lines of another system"),
        pytest.param("[2020-01-01, !mine 1, !!int x]", [[FOREIGN] * 3], id="what JSON has not"),
        pytest.param("1" * 401, ["1" * 401], id="a number of too many digits is text"),
        pytest.param("[1, 'a']: 2", [{"?": 2}], id="a list for a name"),
    ],
)
def test_what_can_be_read(text: str, documents: list[object]) -> None:
    assert read(text) == documents


def test_a_node_knows_its_place() -> None:
    (root,) = parse("a:\n  - b\n  - {c: ü, d: 1}\n".encode(), "p.yaml").documents
    key, items = root.entries[0]  # type: ignore[union-attr]
    inner = items.items[1]  # type: ignore[union-attr]
    placed = [root, key, items, inner, inner.entries[1][1]]  # type: ignore[union-attr]
    assert [f"{n.place.line}:{n.place.col}" for n in placed] == ["1:1", "1:1", "2:3", "3:5", "3:15"]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(20)
)

TOO_MANY = (
    f"too-large: more than {MAX_NODES} values, those that aliases repeat included\n"
    "  help: split it into several files"
)
TOO_LARGE = "too-large: the document is larger than 4 MiB\n  help: split it into several files"
BROKEN = "syntax: not valid YAML or JSON"
NEIGHBOURS = "  help: is the line indented as its neighbours are?"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param(
            b"a:\n\t- b",
            f"2:1: {BROKEN}\n  help: indent with spaces: YAML takes no tab here",
            id="a tab",
        ),
        pytest.param(b"a:\n  - b\n c: d", f"3:2: {BROKEN}\n{NEIGHBOURS}", id="a crooked line"),
        pytest.param(
            b"a: b: c",
            f"1:5: {BROKEN}\n{NEIGHBOURS} text that holds `: ` goes in quotes",
            id="two colons",
        ),
        pytest.param(
            b"a: 'hunter2\nb: 1",
            f"1:4: {BROKEN}\n  help: the quote that opens here is never closed",
            id="an open quote",
        ),
        pytest.param(
            b"a: [", f"1:5: {BROKEN}\n  help: did not find expected node content", id="cut off"
        ),
        pytest.param(
            b"a: *hunter2", f"1:4: {BROKEN}\n  help: found undefined alias", id="no such anchor"
        ),
        pytest.param(
            b"a: &a [*a]", f"1:8: {BROKEN}\n  help: found undefined alias", id="itself in itself"
        ),
        pytest.param(b"a: 1\nb\xe9: 2", "2:2: syntax: the text is not UTF-8", id="Latin-1"),
        pytest.param("a: 1".encode("utf-16"), "1:1: syntax: the text is not UTF-8", id="UTF-16"),
        pytest.param(
            b"a:\n \x00", "2:2: syntax: a control character is not text", id="a zero byte"
        ),
        pytest.param(BOMB.encode(), f"6:11: {TOO_MANY}", id="aliases that multiply"),
        pytest.param(b"x\n" * MAX_BYTES, f"1:1: {TOO_LARGE}", id="8 MiB"),
        pytest.param(b"[" * 65, "1:65: too-deep: nested more than 64 deep", id="many brackets"),
        pytest.param(
            b"".join(b" " * n + b"a:\n" for n in range(100)),
            "65:65: too-deep: nested more than 64 deep",
            id="many steps to the right",
        ),
    ],
)
def test_what_cannot_be_read(document: bytes, said: str) -> None:
    assert told(document) == f"p.yaml:{said}"


@pytest.mark.parametrize(
    ("document", "code"),
    [
        pytest.param(b"[" * MAX_BYTES, "too-deep", id="brackets"),
        pytest.param(b"- " * (MAX_BYTES // 2), "too-deep", id="dashes"),
        pytest.param(b"a: 1" + b":1" * 1_000_000, None, id="a number in base sixty"),
        pytest.param(b"a" * (MAX_BYTES - 3) + b": 1", "syntax", id="a name of 4 MiB"),
    ],
)
def test_four_mebibytes_take_no_longer_than_others(document: bytes, code: str | None) -> None:
    """There is no clock here: what would not end in minutes is seen."""
    assert [finding.code for finding in parse(document, "p").findings] == ([code] if code else [])
