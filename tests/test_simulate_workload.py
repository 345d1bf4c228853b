"""The generated traffic: reproducible, interleaved, built from real answers."""

from pathlib import Path
from typing import Any

import simulate
from simulate.tokens import Tokenizer
from simulate.workload import Sizes, Turn, Workload

SMALL = Sizes(groups=3, conversations_per_group=2, turns=3, prefix_tokens=60, question_tokens=20)


def played(workload: Workload) -> list[Turn]:
    turns = []
    while turn := workload.next():
        turns.append(turn)
        workload.answered(turn, f"answer {len(turns)}")
    return turns


def messages(turn: Turn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = turn.body["messages"]
    return found


def test_equal_seeds_give_equal_chats() -> None:
    assert played(Workload(3, SMALL)) == played(Workload(3, SMALL))
    assert played(Workload(3, SMALL)) != played(Workload(4, SMALL))


def test_every_conversation_has_all_its_turns_in_order_and_they_interleave() -> None:
    turns = played(Workload(1, SMALL))
    assert len(turns) == Workload(1, SMALL).total == 18
    for group in range(3):
        for conversation in range(2):
            mine = [t for t in turns if (t.group, t.conversation) == (group, conversation)]
            assert [turn.number for turn in mine] == [0, 1, 2]
    assert len({turn.group for turn in turns[:6]}) > 1


def test_a_later_turn_carries_the_answers_to_the_earlier_ones() -> None:
    workload = Workload(1, SMALL)
    turns = played(workload)
    last = next(turn for turn in turns if turn.number == 2)
    mine = [t for t in turns if (t.group, t.conversation) == (last.group, last.conversation)]
    said = [f"answer {turns.index(turn) + 1}" for turn in mine[:2]]
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["role"] for message in messages(last)] == roles
    assert [m["content"] for m in messages(last) if m["role"] == "assistant"] == said
    assert messages(last)[: len(messages(mine[1]))] == messages(mine[1])


def test_a_conversation_waits_for_its_answer_while_others_go_on() -> None:
    workload = Workload(1, SMALL)
    taken = [turn for _ in range(10) if (turn := workload.next())]
    assert {turn.number for turn in taken} == {0}
    assert len(taken) == 6
    workload.answered(taken[3], "x")
    following = workload.next()
    assert following is not None
    assert (following.group, following.conversation, following.number) == (
        taken[3].group,
        taken[3].conversation,
        1,
    )


def test_a_failed_chat_ends_its_conversation() -> None:
    workload = Workload(1, SMALL)
    first = workload.next()
    assert first is not None
    workload.failed(first)
    rest = played(workload)
    assert len(rest) == 15
    assert (first.group, first.conversation) not in {(t.group, t.conversation) for t in rest}


def test_groups_share_their_prefix_and_rounds_share_their_groups() -> None:
    prefixes = {
        (seed_round, turn.group, messages(turn)[0]["content"])
        for seed_round in (0, 1)
        for turn in played(Workload(1, SMALL, round=seed_round))
    }
    assert len(prefixes) == 6
    assert len({content for _, _, content in prefixes}) == 3
    assert played(Workload(1, SMALL, round=0)) != played(Workload(1, SMALL, round=1))


def test_sizes_are_tokens_of_the_shipped_model() -> None:
    tokenizer = Tokenizer(Path(simulate.__file__).parent / "model")
    turn = Workload(5).next()
    assert turn is not None
    prefix, question = (len(tokenizer.encode(m["content"])) for m in messages(turn))
    assert (abs(prefix - 4000) < 200, abs(question - 40) < 8) == (True, True)
