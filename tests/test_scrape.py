"""vLLM's /metrics to loads: real pages, older names, and pages that are wrong."""

import re
from pathlib import Path

import pytest

from agent.scrape import parse
from lineside.signals import Load

PAGES = Path(__file__).parent / "cases" / "metrics"
UNDER_LOAD = Load(
    waiting=6,
    running=4,
    kv_cache_usage=0.9787234042553191,
    prompt_tokens=5395,
    generation_tokens=2372,
    prefix_cache_queries=5395,
    prefix_cache_hits=576,
    preemptions=4,
    block_size=32,
    num_gpu_blocks=48,
    process_start_s=1796029139.22,
    prefills=36,
    asleep=False,
    emptied=False,
)


def page(name: str) -> bytes:
    return (PAGES / f"{name}.txt").read_bytes()


def one(text: str, version: str = "") -> Load:
    return parse(text.encode(), [0], version)[0]


def test_a_real_page_gives_every_value() -> None:
    assert parse(page("under_load"), [0], "0.32.0") == {0: UNDER_LOAD}


@pytest.mark.parametrize("name", [path.stem for path in sorted(PAGES.glob("*.txt"))])
def test_no_real_page_misses_a_series(name: str) -> None:
    assert parse(page(name), [0], "0.32.0")[0].missing == ()


def test_each_rank_gets_its_own_series_and_its_share_of_the_blocks() -> None:
    text = page("dp2").replace(
        b'num_requests_waiting{engine="1",model_name="tiny-qwen3"} 0.0',
        b'num_requests_waiting{engine="1",model_name="tiny-qwen3"} 7.0',
    )
    loads = parse(text, [0, 1])
    assert {rank: (load.waiting, load.num_gpu_blocks) for rank, load in loads.items()} == {
        0: (0, 48),
        1: (7, 48),
    }


def test_a_rank_that_the_server_does_not_have_is_all_missing() -> None:
    load = parse(page("under_load"), [1])[1]
    assert load.waiting is None
    assert len(load.missing) == 10


def test_the_one_engine_of_a_server_may_carry_any_number() -> None:
    text = page("under_load").replace(b'engine="0"', b'engine="3"')
    assert parse(text, [0])[0] == UNDER_LOAD


@pytest.mark.parametrize(
    ("version", "usage", "missing"),
    [
        pytest.param("0.10.2", 0.5, False, id="a release that has the older name"),
        pytest.param("0.9.1rc1+cpu", 0.5, False, id="an older one yet"),
        pytest.param("", 0.5, False, id="an unknown release: every name is tried"),
        pytest.param("0.1.dev11+gabcdef", 0.5, False, id="a build from source: likewise"),
        pytest.param("0.14.0", None, True, id="a release that surely lacks it"),
        pytest.param("0.32.0", None, True, id="a current one"),
    ],
)
def test_older_names_count_where_the_release_has_them(
    version: str, usage: float | None, missing: bool
) -> None:
    load = one('vllm:gpu_cache_usage_perc{engine="0"} 0.5\n', version)
    assert load.kv_cache_usage == usage
    assert ("vllm:kv_cache_usage_perc" in load.missing) is missing


def test_the_newer_of_two_names_wins() -> None:
    text = 'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
    assert one(text, "0.10.2").kv_cache_usage == 0.25


WAITING = 'vllm:num_requests_waiting{engine="0",model_name="m"}'


@pytest.mark.parametrize(
    ("text", "waiting"),
    [
        pytest.param(f"{WAITING} 3.0", 3, id="no line end"),
        pytest.param(f"{WAITING} 3.0\r\n", 3, id="a carriage return"),
        pytest.param(f"{WAITING} 3.0 1796029139000\n", 3, id="a timestamp"),
        pytest.param(f'{WAITING} 3.0 # {{trace_id="x"}} 9 9.5\n', 3, id="an exemplar"),
        pytest.param(f"{WAITING} 3\n{WAITING} 4\n", 3, id="a duplicate: the first counts"),
        pytest.param(f"{WAITING} NaN\n", None, id="not a number"),
        pytest.param(f"{WAITING} NaN\n{WAITING} 4\n", 4, id="not a number, then one"),
        pytest.param(f"{WAITING} +Inf\n", None, id="infinite"),
        pytest.param(f"{WAITING} -1\n", None, id="negative"),
        pytest.param(f"{WAITING} 4294967296\n", None, id="too many to be true"),
        pytest.param(f"{WAITING} \n", None, id="no value"),
        pytest.param(f"{WAITING} three\n", None, id="a word"),
        pytest.param('vllm:num_requests_waiting{engine="0" 3\n', None, id="an open brace"),
        pytest.param('vllm:num_requests_waiting{engine="x"} 3\n', 3, id="an engine of no number"),
        pytest.param(
            'vllm:num_requests_waiting{model_name="a,engine=\\"1\\" }",engine="0"} 3\n',
            3,
            id="a model's name that looks like labels",
        ),
        pytest.param('vllm:num_requests_waiting_by_reason{engine="0"} 9\n', None, id="a namesake"),
        pytest.param("\x00\xff{{{}}}\n\n#\n", None, id="noise"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_a_sample_is_a_plausible_number_or_missing(text: str, waiting: int | None) -> None:
    load = one(text)
    assert load.waiting == waiting
    assert ("vllm:num_requests_waiting" in load.missing) is (waiting is None)


def test_a_usage_above_one_is_no_measurement() -> None:
    assert one('vllm:kv_cache_usage_perc{engine="0"} 97\n').kv_cache_usage is None


def test_blocks_not_known_yet_are_missing() -> None:
    load = one('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1.0\n')
    assert (load.block_size, load.num_gpu_blocks) == (16, None)
    assert "vllm:cache_config_info" in load.missing


@pytest.mark.parametrize(
    ("states", "asleep", "emptied"),
    [
        pytest.param({}, False, False, id="awake"),
        pytest.param({"awake": 0}, True, False, id="only paused"),
        pytest.param({"awake": 0, "weights_offloaded": 1}, True, True, id="asleep"),
        pytest.param({"awake": 0, "discard_all": 1}, True, True, id="deeply asleep"),
        pytest.param({"weights_offloaded": 1}, True, True, id="an older release"),
    ],
)
def test_a_sleeping_engine_is_seen(states: dict[str, int], asleep: bool, emptied: bool) -> None:
    text = page("idle").decode()
    for state, value in states.items():
        text = re.sub(rf'(sleep_state="{state}"\}}) \S+', rf"\1 {value}", text)
    load = one(text)
    assert (load.asleep, load.emptied) == (asleep, emptied)
