"""What is said of an engine, from what a real one said and showed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agent import scrape
from cli.asking import Buffered, Rank, Seen, look
from cli.checks import Check, checks, events_flag, release_of, unreached
from cli.examination import WRONG, Report, shown
from cli.probe import Probed
from cli.shown import Out
from coordinator.config import EngineSpec
from coordinator.credentials import Credentials
from coordinator.publisher import Listener
from coordinator.servers import Away, Found, engines_of, found_in, read_models
from lineside.ids import NodeId

CASES = Path(__file__).parent / "cases"
URL = "http://127.0.0.1:8000"
BLOCKS = Check("block_size", "ok", "blocks of 32 tokens, 1,536 tokens of room")


def body(name: str) -> bytes:
    return json.dumps(json.loads((CASES / "http" / f"{name}.json").read_text())["body"]).encode()


def sources(name: str) -> dict[int, Buffered]:
    return msgspec.json.decode(body(name), type=dict[int, Buffered], strict=False)


def seen(
    said: dict[int, Buffered] | None,
    *,
    url: str = URL,
    version: str = "0.32.0",
    page: str = "idle",
    models: str = "get_models",
    listener: Listener = Listener.PUBLISHER,
    replay: Listener = Listener.UNKNOWN,
    **more: Any,
) -> Seen:
    """Return what a captured engine looks like, with its tokenizer at hand."""
    found = found_in(read_models(body(models)), version, None if said is None else {**said})
    assert isinstance(found, Found)
    spec = EngineSpec(url=url, **more)
    metrics = (CASES / "metrics" / f"{page}.txt").read_bytes()
    engines = engines_of(spec, found, NodeId("n"), 4)
    loads = scrape.parse(metrics, [engine.rank or 0 for engine in engines], version)
    ranks = [
        Rank(
            replace(engine, tokenizer="/model"),
            (said or {}).get(engine.rank or 0),
            listener,
            replay,
            loads[engine.rank or 0],
        )
        for engine in engines
    ]
    return Seen(
        spec,
        found,
        tuple(ranks),
        tuple(scrape.engines_in(metrics)),
        scrape.cache_config(metrics),
        tokenizes=True,
    )


CAPTURED = seen(sources("get_kv_event_sources"))
PROBED = Probed(prompt_tokens=97, cached_tokens=96, own=True, replays=True)


def of(seen: Seen, code: str, probed: Probed | None = PROBED) -> list[tuple[str, str, str]]:
    """Return level, message and help of the checks of one kind."""
    said = checks(seen, None if probed is None else [probed] * len(seen.ranks))
    return [(check.level, check.message, check.help) for check in said if check.code == code]


def test_a_captured_engine_lacks_nothing() -> None:
    assert checks(CAPTURED, [PROBED]) == [
        Check("reached", "ok", "vLLM 0.32.0 serves `tiny-qwen3`"),
        BLOCKS,
        Check(
            "events", "ok", "events are published at tcp://127.0.0.1:40801, and that answers here"
        ),
        Check("replay", "ok", "a replay socket listens at tcp://127.0.0.1:39419"),
        Check("token_details", "ok", "its answers say how much of a prompt was cached"),
        Check(
            "own_events",
            "ok",
            "the probe's blocks were announced at tcp://127.0.0.1:40801, with 64-bit hashes",
        ),
        Check(
            "replayed",
            "ok",
            "the probe's events came again from tcp://127.0.0.1:39419 when they were asked for",
        ),
        Check("tokenizer", "ok", "its tokenizer is at /model"),
    ]


def test_ranks_are_named_where_they_differ() -> None:
    said = checks(seen(sources("get_kv_event_sources_dp2"), page="dp2"), [PROBED] * 2)
    assert said[0].message == "vLLM 0.32.0 serves `tiny-qwen3`, 2 data-parallel ranks"
    assert [check.message for check in said if check.code == "events"] == [
        "events are published at tcp://127.0.0.1:43449 by rank 0, and that answers here",
        "events are published at tcp://127.0.0.1:38713 by rank 1, and that answers here",
    ]
    assert sum(check.code == "block_size" for check in said) == 1


CONNECTS = "let it listen: " + events_flag()


@pytest.mark.parametrize(
    ("seen", "code", "level", "words", "help"),
    [
        pytest.param(
            seen({}),
            "events",
            "problem",
            "KV events are off: what it has cached is not known, so requests go to it",
            f"add {events_flag()}",
            id="events are off",
        ),
        pytest.param(
            seen(sources("get_kv_event_sources"), url="http://10.0.0.7:8000"),
            "events",
            "problem",
            "which only its own host or pod can reach",
            events_flag(),
            id="events on loopback of another host",
        ),
        pytest.param(
            seen(sources("get_kv_event_sources_connect_mode"), listener=Listener.NOBODY),
            "events",
            "warning",
            "its publisher connects to tcp://127.0.0.1:37435",
            CONNECTS,
            id="a publisher that connects",
        ),
        pytest.param(
            seen(
                sources("get_kv_event_sources"), listener=Listener.NOBODY, kv="tcp://127.0.0.1:5567"
            ),
            "events",
            "warning",
            "nobody publishes at tcp://127.0.0.1:5567, which `kv` names",
            "leave `kv` out where the engine names its port (vLLM 0.31 and newer), or correct it;"
            " right only if its publisher connects there",
            id="an address that the operator got wrong",
        ),
        pytest.param(
            seen(sources("get_kv_event_sources_connect_mode"), listener=Listener.SUBSCRIBER),
            "events",
            "warning",
            "(one listens there now)",
            CONNECTS,
            id="a publisher that connects to an agent",
        ),
        pytest.param(
            seen(sources("get_kv_event_sources"), listener=Listener.UNKNOWN),
            "events",
            "problem",
            "nothing answers there in time",
            "let this host reach that port",
            id="a port that cannot be reached",
        ),
        pytest.param(
            seen(None, version="0.25.1"),
            "events",
            "warning",
            "it may be another engine's",
            "say that they are: --engine URL,kv=tcp://127.0.0.1:5557",
            id="a guessed port",
        ),
        pytest.param(
            seen(None, version="0.25.1", listener=Listener.NOBODY),
            "events",
            "problem",
            "nothing publishes at tcp://127.0.0.1:5557",
            "kv=tcp://HOST:PORT",
            id="nothing at the guessed port",
        ),
        pytest.param(
            seen(None, version="0.25.1"),
            "version",
            "note",
            "it cannot announce its blocks anew",
            "",
            id="a release that announces nothing anew",
        ),
        pytest.param(
            seen({}, version="0.9.2"), "version", "warning", "before 0.10", "newer", id="too old"
        ),
        pytest.param(
            seen({}, version="0.1.dev1+g123"), "version", "warning", "it names", "", id="a build"
        ),
        pytest.param(
            seen({}, version="0.40.0"), "version", "note", "after 0.33", "", id="a new release"
        ),
        pytest.param(
            seen(None, version="0.25.1", page="dp2"),
            "ranks",
            "problem",
            "2 data-parallel ranks, and this release does not name them",
            f"--engine {URL},rank=0 --engine {URL},rank=1",
            id="ranks that nobody names",
        ),
        pytest.param(
            seen({0: Buffered(endpoint="tcp://*:5557")}),
            "replay",
            "warning",
            "it answers no replays",
            "replay_endpoint",
            id="no replay",
        ),
        pytest.param(
            seen(sources("get_kv_event_sources"), replay=Listener.NOBODY),
            "replay",
            "warning",
            "nothing listens for replays at tcp://127.0.0.1:39419",
            "replay_endpoint",
            id="a replay socket that is not there",
        ),
        pytest.param(
            seen(sources("get_kv_event_sources_connect_mode")),
            "buffer_steps",
            "warning",
            "it keeps 5 steps for replays",
            '"buffer_steps": 100000',
            id="a small replay buffer",
        ),
        pytest.param(
            replace(CAPTURED, cache_config={"enable_prefix_caching": "False"}),
            "prefix_caching",
            "problem",
            "prefix caching is off",
            "add --enable-prefix-caching",
            id="no prefix caching",
        ),
        pytest.param(
            replace(CAPTURED, metrics_failure="/metrics answered 404"),
            "metrics",
            "problem",
            "/metrics answered 404: load is known by what is in flight from here alone",
            "--disable-log-stats",
            id="no metrics",
        ),
    ],
)
def test_what_an_engine_lacks_is_said_with_the_flag(
    seen: Seen, code: str, level: str, words: str, help: str
) -> None:
    ((found_level, message, found_help),) = of(seen, code)
    assert (found_level, words in message, help in found_help) == (level, True, True), message


def one_rank(**changes: Any) -> Seen:
    (rank,) = CAPTURED.ranks
    assert rank.load
    load = replace(rank.load, **changes)
    return replace(CAPTURED, ranks=(replace(rank, load=load),))


@pytest.mark.parametrize(
    ("changes", "code", "level", "words"),
    [
        ({"block_size": 24}, "block_size", "problem", "24 tokens, which is no multiple of 16"),
        ({"asleep": True}, "asleep", "warning", "it gets no requests"),
        ({"missing": ("vllm:a",)}, "metrics", "warning", "series missing in /metrics: vllm:a"),
    ],
    ids=["an odd block size", "asleep", "missing series"],
)
def test_what_metrics_tell(changes: dict[str, Any], code: str, level: str, words: str) -> None:
    ((found_level, message, _),) = of(one_rank(**changes), code)
    assert (found_level, words in message) == (level, True), message


@pytest.mark.parametrize(
    ("at_hand", "tokenizes", "level", "words"),
    [
        (True, False, "ok", "its tokenizer is at /model"),
        (False, True, "warning", "each prompt is tokenized by the engine's /tokenize"),
        (False, False, "problem", "prompts cannot be matched"),
    ],
)
def test_tokenizers(at_hand: bool, tokenizes: bool, level: str, words: str) -> None:
    (rank,) = CAPTURED.ranks
    engine = rank.engine if at_hand else replace(rank.engine, tokenizer=None)
    looked = replace(CAPTURED, ranks=(replace(rank, engine=engine),), tokenizes=tokenizes)
    ((found_level, message, _),) = of(looked, "tokenizer")
    assert (found_level, words in message) == (level, True), message


@pytest.mark.parametrize(
    ("probed", "code", "level", "words"),
    [
        pytest.param(None, "token_details", "note", "not looked at", id="no probe"),
        pytest.param(
            replace(PROBED, cached_tokens=None),
            "token_details",
            "warning",
            "predictions are not checked",
            id="no token details",
        ),
        pytest.param(
            replace(PROBED, cached_tokens=0),
            "prefix_caching",
            "problem",
            "a prompt of 97 tokens that was sent twice hit nothing",
            id="nothing is cached",
        ),
        pytest.param(
            replace(PROBED, own=False, others=True),
            "own_events",
            "problem",
            "is not this engine's",
            id="another engine's events",
        ),
        pytest.param(
            replace(PROBED, own=False), "own_events", "problem", "were not announced", id="silence"
        ),
        pytest.param(
            replace(PROBED, wide_hashes=True), "own_events", "ok", "32-byte hashes", id="wide"
        ),
        pytest.param(
            replace(PROBED, replays=False),
            "replayed",
            "warning",
            "did not come again",
            id="no replay",
        ),
        pytest.param(
            replace(PROBED, unreadable="cannot bind"),
            "own_events",
            "problem",
            "cannot bind",
            id="x",
        ),
        pytest.param(
            Probed(failure="POST /v1/completions answers 404"),
            "probe",
            "warning",
            "the probe could not be sent: POST /v1/completions answers 404",
            id="no probe was answered",
        ),
    ],
)
def test_what_a_probe_tells(probed: Probed | None, code: str, level: str, words: str) -> None:
    ((found_level, message, _),) = of(CAPTURED, code, probed)
    assert (found_level, words in message) == (level, True), message


def test_reports_are_for_people_and_for_machines() -> None:
    check = Check("events", "problem", "off\x1b[2J", "add it")
    report = Report(URL, True, [Check("reached", "ok", "there"), check])
    assert report.to_json() == {
        "url": URL,
        "reached": True,
        "problems": 1,
        "checks": [
            {"code": "reached", "level": "ok", "message": "there", "help": ""},
            {"code": "events", "level": "problem", "message": "off\x1b[2J", "help": "add it"},
        ],
    }
    assert printed(shown([report])) == (
        f"{URL}\n  ok       there\n  problem  off?[2J\n           help: add it"
    )
    fine = Report(URL, True, [Check("reached", "ok", "there")])
    assert printed(shown([fine, report], WRONG)).splitlines()[:2] == [URL, "  problem  off?[2J"]


def printed(value: Any) -> str:
    console = Out(width=100, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(value)
    return capture.get().rstrip()


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.32.0", (0, 32)), ("v1.2", (1, 2)), ("", None), ("0.1.dev1", None), ("main", None)],
)
def test_a_release_is_read(version: str, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release


async def test_a_key_that_cannot_be_read_is_named_by_its_file(tmp_path: Path) -> None:
    spec = EngineSpec(url=URL, api_key_file=str(tmp_path / "key"))
    away = await look(cast(Any, None), Credentials.of([spec]), spec)
    assert isinstance(away, Away)
    why = f"`api_key_file` cannot be read: No such file or directory: {tmp_path}/key"
    help_ = "name a file with one line, its key"
    assert unreached(away.reason) == Check("reached", "problem", why, help_)
    assert unreached("cannot connect").help == "start it, or correct --engine"
