"""What people are shown of engines and decisions, word for word."""

from io import StringIO
from typing import Any

import pytest
from rich.console import RenderableType

from cli.explain import explained
from cli.get import decisions_shown, engines_shown, policies_shown
from cli.members import members_shown
from cli.route import Unreadable, asked
from cli.shown import TEXT_CHARS, Out, count, number, pair, percent, seconds, short, table, text

AGES = {"cache_s": 0.04, "load_s": 1.25}

BEST = {
    "id": "10.0.0.3:8000",
    "overlap_tokens": 3968,
    "uncached_tokens": 128,
    "predicted_ttft_s": 0.02,
    "cost": 0.04,
    "wait_s": 0.0,
    "own_s": 0.02,
    "outstanding": 1,
    "cache_state": "live",
    "reason": "",
    "dropped_by": None,
    "ages": AGES,
}
SECOND = BEST | {
    "id": "10.0.0.4:8000",
    "overlap_tokens": 0,
    "uncached_tokens": 4096,
    "predicted_ttft_s": 1.2,
    "cost": 2.4,
    "own_s": 1.2,
    "cache_state": "lost",
    "reason": "the engine's agent has been silent for too long",
    "ages": {"cache_s": 14.0, "load_s": None},
}
AWAY = BEST | {
    "id": "10.0.0.5:8000",
    "dropped_by": "away",
    "reason": "cannot connect",
    "cache_state": "connecting",
    "ages": {"cache_s": None, "load_s": None},
}

RECORD: dict[str, Any] = {
    "id": "5f1c",
    "at": 1_700_000_000.0,
    "request_id": "r1",
    "api": "openai-chat",
    "model": "m",
    "stream": True,
    "decision": {"id": "10.0.0.3:8000"},
    "tokens": "exact",
    "tokens_reason": "local",
    "prompt_tokens": 4096,
    "tenant": "default",
    "policy": "default",
    "rule": "default",
    "stage": "default",
    "candidates": [BEST, SECOND, AWAY],
    "attempts": [],
    "outcome": {
        "end": "finished",
        "status": 200,
        "finish": "stop",
        "ttft_s": 0.05,
        "predicted_ttft_s": 0.02,
        "cached_tokens": 3936,
        "predicted_cached_tokens": 3968,
        "completion_tokens": 12,
        "duration_s": 1.5,
    },
}


def printed(shown: RenderableType, width: int = 120) -> str:
    out = StringIO()
    Out(file=out, width=width, markup=False, highlight=False).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_a_decision_is_explained() -> None:
    assert printed(explained(RECORD)) == (
        """\
decision 5f1c  2023-11-14 22:13:20 UTC  request r1
openai-chat for model `m`, streamed, tenant default
policy default, rule default, stage default
tokens exact (local): prompt of 4096
chosen: 10.0.0.3:8000, the lowest cost of 2: 40 ms; next 10.0.0.4:8000: 2.4 s

   engine         overlap  uncached  in flight  wait    own   TTFT   cost           ages  cache
>  10.0.0.3:8000     3968       128          1  0 ms  20 ms  20 ms  40 ms  40 ms / 1.2 s  live
   10.0.0.4:8000        0      4096          1  0 ms  1.2 s  1.2 s  2.4 s     14.0 s / -  lost
x  10.0.0.5:8000        -         -          -     -      -      -      -          - / -  connecting
10.0.0.4:8000 cache is lost: the engine's agent has been silent for too long
10.0.0.5:8000 dropped by away: cannot connect
overlap: cached by the index's word, + what requests in flight will have added
wait: predicted queue before it; own: its own prefill; TTFT: both together
cost: what is minimised, TTFT and the delay of others; ages: of cache and load

outcome: finished, status 200, finish stop, after 1.5 s, 12 tokens out
                     predicted  actual  difference
time to first token      20 ms   50 ms      +30 ms
cached tokens             3968    3936         -32"""
    )


def test_what_is_on_its_way_stands_beside_the_index() -> None:
    candidate = BEST | {"overlap_tokens": 0, "speculative_tokens": 3968}
    outcome = RECORD["outcome"] | {"predicted_cached_tokens": 0, "speculative_tokens": 3968}
    shown = printed(explained(RECORD | {"candidates": [candidate], "outcome": outcome}))
    assert "10.0.0.3:8000  0 +3968 " in shown
    assert "cached tokens          0 +3968    3936       +3936" in shown


def test_a_fallback_is_explained_with_its_tries() -> None:
    record = RECORD | {
        "decision": {"id": "10.0.0.4:8000"},
        "attempts": [{"engine": "10.0.0.3:8000", "repeat": "safe", "reason": "refused"}],
    }
    lines = printed(explained(record)).splitlines()
    assert "served by 10.0.0.4:8000, a fallback: the tries before it failed" in lines
    assert lines[lines.index("tries") :][:3] == [
        "tries",
        "  1. 10.0.0.3:8000 failed: refused (another try: safe)",
        "  2. 10.0.0.4:8000 answered",
    ]


def test_a_refusal_says_why_and_compares_nothing() -> None:
    refusal = {"reason": "unknown_model", "status": 404, "message": "the model does not exist"}
    record = RECORD | {
        "decision": None,
        "refusal": refusal,
        "candidates": [],
        "policy": "",
        "tokens": "unknown",
        "tokens_reason": "",
        "prompt_tokens": None,
        "outcome": {"end": "refused", "status": 404},
    }
    assert printed(explained(record)).splitlines()[2:] == [
        "tokens unknown: prompt length not known",
        "refused: 404 unknown_model: the model does not exist",
        "",
        "outcome: refused, status 404",
    ]


def test_a_dry_run_says_that_it_is_one() -> None:
    shown = printed(explained(RECORD | {"request_id": "dry-run"}))
    assert shown.endswith("dry run: nothing was sent, accounted or kept")
    assert "outcome" not in shown


def test_decisions_are_a_table() -> None:
    refused = RECORD | {
        "id": "5f1d",
        "decision": None,
        "model": "o",
        "refusal": {"reason": "fault", "status": 500, "message": "none"},
        "prompt_tokens": None,
        "outcome": {"end": "refused", "status": 503},
    }
    flying = RECORD | {
        "id": "5f1e",
        "decision": {"id": "e:1"},
        "outcome": {"end": None, "predicted_ttft_s": 0.02},
    }
    assert printed(decisions_shown([refused, flying, RECORD | {"decision": {"id": "e:1"}}])) == (
        """\
id    UTC             model  backend  prompt       cached        TTFT  end
5f1d  11-14 22:13:20  o      -             -        - / -       - / -  500 fault
5f1e  11-14 22:13:20  m      e:1        4096        - / -   20 ms / -  in flight
5f1c  11-14 22:13:20  m      e:1        4096  3968 / 3936  20 / 50 ms  finished
cached, TTFT: predicted / actual (actual TTFT: of streams alone)"""
    )


def test_decisions_name_their_rules_where_policies_route() -> None:
    governed = RECORD | {"policy": "default/burst", "rule": "spill", "decision": {"id": "e:1"}}
    plain = RECORD | {"policy": "default", "rule": "default", "decision": {"id": "e:1"}}
    refused = RECORD | {"policy": None, "rule": None, "decision": None}
    lines = printed(decisions_shown([governed, plain, refused])).splitlines()
    assert [line.split()[4] for line in lines[:4]] == ["backend", "burst/spill", "default", "-"]


def test_a_narrow_terminal_gets_decisions_without_columns_of_a_few_letters() -> None:
    long = {"model": "owner/Some-Very-Long-Name-Of-A-Model-480B-FP8", "prompt_tokens": 131_072}
    governed = RECORD | long | {"policy": "default/burst", "rule": "spill"}
    lines = printed(decisions_shown([governed]), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split() for line in lines[2:4]] == [
        ["11-14", "22:13:20", "burst/spill"],
        ["10.0.0.3:8000"],
    ]
    assert lines[1].split()[:3] == ["5f1c", "Some-Very-Lo…el-480B-FP8", "131k"]


def test_policies_are_a_table_with_what_is_wrong_below() -> None:
    finding = {"file": "p.yaml", "line": 3, "col": 5, "code": "unknown-field", "message": "no"}
    said = {
        "revision": 4,
        "rolled_back": False,
        "policies": [
            {"name": "default/burst", "priority": 7, "mode": "Enforce", "rules": ["a", "b"]}
        ],
        "source": "policies",
        "rejected": True,
        "findings": [finding, finding | {"severity": "warning", "message": "x" * TEXT_CHARS}],
    }
    assert printed(policies_shown(said)) == (
        """\
policy         priority  mode     rules
default/burst         7  Enforce  a, b
revision 4
from policies
the last edit was rejected; the set before it is in force
p.yaml:3:5: unknown-field: no
p.yaml:3:5: warning: unknown-field: """
        + "x" * TEXT_CHARS
    )


def test_engines_are_a_table_with_what_is_wrong_below() -> None:
    engine = {
        "id": "e:1",
        "model": "m",
        "away": False,
        "cache_state": "unsure",
        "reason": "events were lost",
        "blocks": 1_234_567,
        "cache_worth_tokens": 0,
        "waiting": None,
        "running": 2,
        "inflight": 1,
        "wait_s": 0.25,
        "saturation": 0.5,
        "age_s": 0.1,
        "load_age_s": None,
        "missing_metrics": ["vllm:x"],
    }
    away = engine | {"id": "e:2", "away": True, "reason": "", "missing_metrics": []}
    assert printed(engines_shown([engine, away])) == (
        """\
engine  model  cache   blocks  worth  queue  in flight    wait  full        ages
e:1     m      unsure    1.2M      0  - + 2          1  250 ms  50 %  100 ms / -
e:2     m      away      1.2M      0  - + 2          1  250 ms  50 %  100 ms / -
queue: waiting + running, by its own word; in flight: by ours
ages: of what is known of its cache and of its load
full: KV cache, or share that waits; worth: cached tokens that were read lately
e:1: events were lost
e:1: metrics missing: vllm:x"""
    )
    assert printed(engines_shown([])) == "the coordinator has no engines"
    audit = {"mispredicted": True, "unreported": 3}
    wrong = engine | {"reason": "5 of 20", "missing_metrics": [], "audit": audit}
    assert printed(engines_shown([wrong])) == (
        """\
engine  model  cache                 blocks  worth  queue  in flight    wait  full        ages
e:1     m      unsure, mispredicted    1.2M      0  - + 2          1  250 ms  50 %  100 ms / -
queue: waiting + running, by its own word; in flight: by ours
ages: of what is known of its cache and of its load
full: KV cache, or share that waits; worth: cached tokens that were read lately
e:1: 5 of 20
e:1: its answers do not say what was cached, so predictions are not checked: start it with
--enable-prompt-tokens-details"""
    )


ENGINE = {
    "id": "10.244.112.33:8000",
    "model": "owner/Qwen3.8-72B-Instruct-FP8",
    "cache_state": "live",
    "blocks": 30_000,
    "cache_worth_tokens": 480_000,
    "waiting": 12,
    "running": 64,
    "inflight": 76,
    "wait_s": 0.25,
    "saturation": 0.5,
    "age_s": 0.1,
    "load_age_s": 1.7,
}
FAR = [each | {"id": f"10.244.112.{n}:8000"} for n, each in enumerate((BEST, SECOND, AWAY))]
MEMBER = {
    "id": "lineside-coordinator-0",
    "version": "0.1.0",
    "since": 0.0,
    "listening": {
        name: f"10.244.112.33:{port}" for name, port in (("http", 8080), ("admin", 9090))
    },
}
GOVERNED = RECORD | {
    "id": "3cc7eedded461779",
    "model": ENGINE["model"],
    "policy": "inference/smart-semantic-routing",
    "rule": "low-complexity-consider-qwen",
    "decision": {"id": "10.244.112.33:8000"},
}


@pytest.mark.parametrize(
    ("shown", "whole"),
    [
        pytest.param(engines_shown([ENGINE]), ["10.244.112.33:8000", "live"], id="engines"),
        pytest.param(
            explained(RECORD | {"candidates": FAR, "decision": {"id": FAR[0]["id"]}}),
            [each["id"] for each in FAR],
            id="candidates",
        ),
        pytest.param(
            decisions_shown([GOVERNED]), ["3cc7eedded461779", "10.244.112.33:8000"], id="decisions"
        ),
        pytest.param(
            members_shown({"me": "", "coordinators": [MEMBER], "agents": []}, 90.0),
            ["lineside-coordinator-0", "10.244.112.33:8080"],
            id="members",
        ),
    ],
)
def test_on_a_terminal_of_80_columns_tables_fit_and_names_stay_whole(
    shown: RenderableType, whole: list[str]
) -> None:
    said = printed(shown, width=80)
    assert max(map(len, said.splitlines())) <= 80
    assert [name for name in whole if name not in said] == []


def test_a_table_that_fits_nowhere_is_cut_nowhere() -> None:
    rows = table("what is long", "numbers", "more of them", right="numbers,more of them")
    rows.add_row("a name of many letters", "1" * 30, "2" * 30)
    lines = printed(rows, width=40).splitlines()[1:]
    assert lines == [f"a name of     {'1' * 30}  {'2' * 30}", "many letters"]


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert text("\x1b[31mred\n") == "?[31mred?"
    assert len(text("x" * 500)) == TEXT_CHARS


def test_a_column_without_a_name_is_folded_before_one_that_is_to_be_whole() -> None:
    rows = table("name", "n", "", right="n", whole="name")
    rows.add_row("least_loaded", "1", "word " * 30)
    assert printed(rows).splitlines()[1].startswith("least_loaded  1  word word")


def test_what_is_long_is_shortened() -> None:
    assert [count(n) for n in (None, 0, 99_949, 131_072, 999_499, 2_345_678)] == [
        *("-", "0", "99949", "131k", "999k", "2.3M")
    ]
    assert [pair(*s) for s in ((0.1, 0.2), (0.1, 2.0), (1.5, 2.0), (None, 0.1), (0.1, None))] == [
        *("100 / 200 ms", "100 ms / 2.0 s", "1.5 / 2.0 s", "- / 100 ms", "100 ms / -")
    ]
    assert (short("owner/name"), short(None)) == ("name", "-")
    assert short("a" * 12 + "b" * 20) == "a" * 12 + "…" + "b" * 11


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    assert [show(None) for show in (number, seconds, percent)] == ["-", "-", "-"]
    assert [show(0) for show in (number, seconds, percent)] == ["0", "0 ms", "0 %"]


CHAT = {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("document", "request_"),
    [
        pytest.param(
            b'{"model": "m", "messages": []}',
            {"path": "/v1/chat/completions", "headers": {}, "body": CHAT},
            id="a bare chat",
        ),
        pytest.param(
            b'{"prompt": "p"}',
            {"path": "/v1/completions", "headers": {}, "body": {"prompt": "p"}},
            id="a bare completion",
        ),
        pytest.param(
            b'{"body": {"model": "m", "messages": []}, "headers": {"a": "b"}}',
            {"path": "/v1/chat/completions", "headers": {"a": "b"}, "body": CHAT},
            id="no path",
        ),
        pytest.param(
            b'{"path": "/v1/completions", "body": "text"}',
            {"path": "/v1/completions", "headers": {}, "body": "text"},
            id="a body as text",
        ),
    ],
)
def test_a_request_is_read(document: bytes, request_: dict[str, Any]) -> None:
    assert asked(document, "r.json") == request_


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param(
            b'{"secret prompt": ',
            "r.json:1:19: syntax: not valid JSON\n  help: expecting value",
            id="broken",
        ),
        pytest.param(b"\xff", "r.json:1:1: request: not JSON in UTF-8", id="not text"),
        pytest.param(b"[]", "r.json:1:1: request: a request is a JSON object", id="a list"),
        pytest.param(
            b'{"model": "m"}',
            "r.json:1:1: request: neither `messages` nor `prompt` says what is asked\n"
            "  help: a chat has `messages`, a completion `prompt`; else name the `path` beside"
            " `body`",
            id="neither",
        ),
        pytest.param(
            b'{"body": {}, "header": {}}',
            "r.json:1:1: request: there is no member `header` beside `body`\n"
            "  help: did you mean `headers`?",
            id="a misspelt member",
        ),
        pytest.param(
            b'{"body": {"prompt": ""}, "headers": 1}',
            "r.json:1:1: request: `headers` must be an object",
            id="no headers",
        ),
    ],
)
def test_what_is_no_request_is_said(document: bytes, said: str) -> None:
    with pytest.raises(Unreadable) as error:
        asked(document, "r.json")
    assert str(error.value) == said


def test_what_policies_did_beside_the_choice_is_told() -> None:
    record = {
        "api": "openai-chat",
        "model": "m",
        "tenant": "t",
        "guards": ["ns/p/r/x"],
        "unknown": ["tag pii"],
        "set": {"maxTokens": 3, "defaults": None, "parameters": None, "headers": []},
        "shadow": {"ns/s": "the same"},
    }
    lines = printed(explained(record)).splitlines()
    for line in (
        "guards that held: ns/p/r/x",
        "not known: tag pii",
        "rewritten: maxTokens",
        "shadow ns/s: the same",
    ):
        assert line in lines
