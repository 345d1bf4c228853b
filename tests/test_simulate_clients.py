"""What waiting clients ask: reproducible, different for each client, shared as it should be."""

from itertools import islice, pairwise
from typing import Any

import pytest

from simulate.clients import CLIENTS, multi_turn, shared_prefix


def contents(chat: dict[str, Any]) -> list[str]:
    return [message["content"] for message in chat["messages"]]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_asks_the_same_again_and_another_asks_something_else(name: str) -> None:
    first, again, other = (list(islice(CLIENTS[name](5, n), 3)) for n in (1, 1, 2))
    assert first == again
    assert not {contents(chat)[-1] for chat in first} & {contents(chat)[-1] for chat in other}


def test_clients_share_prefixes() -> None:
    asked = [contents(c)[0] for n in range(2) for c in islice(shared_prefix(5, n, 3, 40), 20)]
    assert len(set(asked)) == 3


def test_conversations_go_on_from_invented_answers_and_begin_anew_after_their_turns() -> None:
    chats = list(map(contents, islice(multi_turn(5, 1, turns=4, opening_tokens=30), 12)))
    begins = [place for place, chat in enumerate(chats) if len(chat) == 2]
    assert begins[1] - begins[0] <= 4
    assert [later - sooner for sooner, later in pairwise(begins[1:])] == [4, 4]
    for sooner, later in pairwise(chats):
        assert len(later) == 2 or later[: len(sooner)] == sooner
    assert len({chat[0] for chat in chats}) == 1
