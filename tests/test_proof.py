"""Who may speak for a node: by a token, by a certificate; and why not."""

import pytest

from coordinator.trust.proof import All, Denied, OwnCertificate, SharedToken, Shown, Why
from lineside.certificates import nodes_of
from lineside.ids import NodeId

NODE = NodeId("gpu-1")


@pytest.mark.parametrize(
    ("uris", "names", "nodes"),
    [
        pytest.param(["spiffe://a.b/node/gpu-1"], ["gpu-2"], {"gpu-1"}, id="a URI before names"),
        pytest.param([], ["gpu-1", "gpu-2"], {"gpu-1", "gpu-2"}, id="names, where there is no URI"),
        pytest.param(
            ["spiffe://a/node/x", "spiffe://b/node/y"], [], {"x", "y"}, id="several nodes"
        ),
        pytest.param(["spiffe://a/ns/n/sa/s"], ["gpu-1"], {"gpu-1"}, id="a URI of something else"),
        pytest.param(["spiffe://a/node/x/y"], [], set(), id="a longer path"),
        pytest.param(["spiffe://a/b/node/x"], [], set(), id="a path before it"),
        pytest.param(["https://a/node/x"], [], set(), id="another scheme"),
        pytest.param(["spiffe:///node/x"], [], set(), id="no domain"),
        pytest.param(["spiffe://a/node/"], [], set(), id="no node"),
        pytest.param([], [], set(), id="nothing"),
    ],
)
def test_a_certificate_names_nodes(uris: list[str], names: list[str], nodes: set[str]) -> None:
    assert nodes_of(uris, names) == nodes


@pytest.mark.parametrize(
    ("token", "sent", "text"),
    [
        pytest.param("t0ken", "Bearer t0ken", None, id="the token"),
        pytest.param("t0ken", "bearer  t0ken ", None, id="loosely written"),
        pytest.param("t0ken", "", "missing or not the one", id="none is sent"),
        pytest.param("t0ken", "Bearer t0kem", "missing or not the one", id="another one"),
        pytest.param("t0ken", "Basic t0ken", "missing or not the one", id="another scheme"),
        pytest.param("t0ken", "Bearer \ufffd", "missing or not the one", id="no text"),
    ],
)
async def test_a_shared_token_is_the_same_or_not(token: str, sent: str, text: str | None) -> None:
    denied = await SharedToken(token).judge(Shown(sent), NODE)
    if text is None:
        assert denied is None
    else:
        assert denied is not None and denied.why is Why.UNKNOWN
        assert text in denied.text and "t0k" not in denied.text


@pytest.mark.parametrize(
    ("uris", "said"),
    [
        pytest.param(["spiffe://d/node/gpu-1"], None, id="its own"),
        pytest.param(
            ["spiffe://d/node/b", "spiffe://d/node/a"],
            "the agent's certificate is for `a`, `b`, not for `gpu-1`",
            id="others",
        ),
        pytest.param(
            [f"spiffe://d/node/{n}" for n in range(6)],
            "the agent's certificate is for `0`, `1`, `2`, `3` and others, not for `gpu-1`",
            id="many others",
        ),
        pytest.param([], "the agent's certificate names no node", id="none"),
    ],
)
async def test_a_certificate_speaks_for_the_nodes_that_it_names(
    uris: list[str], said: str | None
) -> None:
    denied = await OwnCertificate().judge(Shown("", uris), NODE)
    help = ": give it one with the URI `spiffe://DOMAIN/node/gpu-1`, or set its `node`"
    assert denied == (None if said is None else Denied(Why.NOT_ITS_NODE, said + help))


async def test_every_proof_must_hold() -> None:
    both = All([SharedToken("t"), OwnCertificate()])
    uris = ["spiffe://d/node/gpu-1"]
    assert await both.judge(Shown("Bearer t", uris), NODE) is None
    no_token, no_name = (
        await both.judge(Shown("", uris), NODE),
        await both.judge(Shown("Bearer t"), NODE),
    )
    assert no_token and no_token.why is Why.UNKNOWN
    assert no_name and no_name.why is Why.NOT_ITS_NODE
    assert await All([]).judge(Shown(), NODE) is None


async def test_where_nothing_is_asked_for_anybody_may_speak() -> None:
    assert await All(()).judge(Shown(), NODE) is None
