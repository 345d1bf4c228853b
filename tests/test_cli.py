"""The command line: what it reads, what it says about what it cannot read, exit codes."""

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.board import Board, Summary, cached_share, show, ttft_p50_ms
from cli.children import _environment
from cli.main import main
from cli.traffic import Sample
from cli.up import BadEngine, _named, _policies, parse_engine

MODEL = Path(__file__).parent.parent / "simulate" / "model"
FILE = MODEL / "tokenizer.json"


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        pytest.param("http://h:8000", {"url": "http://h:8000"}, id="an address"),
        pytest.param("http://h:8000/", {"url": "http://h:8000"}, id="a trailing slash"),
        pytest.param("http://h", {"url": "http://h:80"}, id="no port"),
        pytest.param("https://h", {"url": "https://h:443"}, id="https"),
        pytest.param("http://[::1]:8000", {"url": "http://[::1]:8000"}, id="IPv6"),
        pytest.param(
            "http://h:8000,kv=tcp://h:1,replay=ipc:///r,rank=3,topic=kv@",
            {
                "url": "http://h:8000",
                "kv": "tcp://h:1",
                "replay": "ipc:///r",
                "rank": 3,
                "topic": "kv@",
            },
            id="options",
        ),
        pytest.param(
            f"http://h:1,tokenizer={MODEL}",
            {"url": "http://h:1", "tokenizer": str(MODEL.resolve())},
            id="a tokenizer",
        ),
        pytest.param(
            "http://h:1,gpus=GPU-a+GPU-b",
            {"url": "http://h:1", "gpus": ["GPU-a", "GPU-b"]},
            id="GPUs",
        ),
    ],
)
def test_an_engine_is_read(text: str, engine: dict[str, Any]) -> None:
    assert parse_engine(text) == engine


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("127.0.0.1:8000", "write http://HOST:PORT", id="no scheme"),
        pytest.param("http://h:99999", "no valid port", id="a port too high"),
        pytest.param("http://h:1/v1", "has a path", id="a path"),
        pytest.param("http://h:1,kv=5557", "is not a ZMQ endpoint", id="a bare port for events"),
        pytest.param("http://h:1,kvs=tcp://h:1", "`kv=`", id="an unknown option"),
        pytest.param("http://h:1,rank=x", "not a number", id="a rank that is no number"),
        pytest.param("http://h:1,tokenizer=/nowhere", "no folder `/nowhere`", id="no folder"),
        pytest.param("http://h:1,tokenizer=./org/name", "no folder `./org/name`", id="a path"),
        pytest.param("http://h:1,tokenizer=~/qwen", "no folder `~/qwen`", id="none at home"),
        pytest.param("http://h:1,tokenizer=a/b/c", "no folder `a/b/c`", id="too deep for a hub"),
        pytest.param("http://h:1,tokenizer=org/", "no folder `org/`", id="a folder's slash"),
        pytest.param("http://h:1,tokenizer=/", "no tokenizer.json in `/`", id="no tokenizer"),
        pytest.param(f"http://h:1,tokenizer={FILE}", "name the folder", id="a file"),
        pytest.param("http://h:1,tokenizer=qwen", "no name of a hub: at a model", id="one word"),
        pytest.param("http://h:1,tokenizer=org/a--b", "no name of a hub", id="no hub's name"),
        pytest.param("http://h:1,tokenizer=org/ä", "no name of a hub", id="not in ASCII"),
        pytest.param("http://h:1,gpus=0", "is not a GPU's UUID", id="a GPU's index"),
    ],
)
def test_what_cannot_be_read_is_explained(text: str, words: str) -> None:
    with pytest.raises(BadEngine, match=words):
        parse_engine(text)


def test_a_name_whose_folder_is_here_is_not_taken_for_a_hubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_engine("http://h:1,tokenizer=models/qwen")["tokenizer"] == "models/qwen"
    (tmp_path / "models").mkdir()
    with pytest.raises(BadEngine, match=r"no `qwen` in it; .* write models/qwen@main"):
        parse_engine("http://h:1,tokenizer=models/qwen")
    meant = parse_engine("http://h:1,tokenizer=models/qwen@main")["tokenizer"]
    assert meant == "models/qwen@main"
    with pytest.raises(BadEngine, match="no folder `models/qwen/`"):
        parse_engine("http://h:1,tokenizer=models/qwen/")


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param([], id="no command"),
        pytest.param(["fly"], id="an unknown command"),
        pytest.param(["up"], id="up without an engine"),
        pytest.param(["up", "--engine", "nonsense"], id="an engine that cannot be read"),
        pytest.param(["up", "--engine", "http://h:1", "--http", "8080"], id="a bare port"),
        pytest.param(["up", "--engine", "http://h:1", "--store", "redis:"], id="an unknown store"),
        pytest.param(["demo", "--seconds", "0"], id="no seconds"),
        pytest.param(["sim", "engine", "--port", "x"], id="a port that is no number"),
    ],
)
def test_usage_errors_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    assert "usage: lineside" in capsys.readouterr().err


def test_an_engine_that_cannot_be_simulated_exits_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "engine", "--blocks", "2", "--max-model-len", "9999"]) == 2
    assert "does not fit" in capsys.readouterr().err


def test_children_do_as_their_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINESIDE_NODE", "elsewhere")
    monkeypatch.setenv("ELSE", "kept")
    environment = _environment()
    assert environment["ELSE"] == "kept"
    assert not [name for name in environment if name.startswith("LINESIDE_")]


def test_up_says_how_many_policies_are_in_force_and_where_to_ask() -> None:
    assert _policies({"policies": []}) == ""
    said = _policies({"policies": [{}, {}], "findings": [{}]})
    assert said == "policies 2 in force, 1 warning: lineside get policies\n"
    assert _named("http://127.0.0.1:9090") == ""
    assert _named("http://127.0.0.1:9091") == " --admin http://127.0.0.1:9091"


def _sample(ttft_s: float | None, cached: int | None = 0, error: str = "") -> Sample:
    return Sample("e", ttft_s, 100, cached, error=error)


def test_the_summary_counts_failures_and_leaves_them_out_of_the_median() -> None:
    direct = [_sample(0.2), _sample(0.4), _sample(9.0, error="status 500")]
    routed = [_sample(0.02, 90), _sample(0.04, 80)]
    outcome = {"predicted_cached_tokens": 80, "cached_tokens": 90, "prompt_tokens": 100}
    unknown = {"predicted_cached_tokens": None, "cached_tokens": 90, "prompt_tokens": 100}
    summary = Summary(direct, routed, [{"outcome": outcome}, {"outcome": unknown}])
    assert summary.to_json() == {
        "requests": 5,
        "failed": 1,
        "ttft_p50_ms": {
            "round_robin": pytest.approx(300.0),
            "lineside": pytest.approx(30.0),
        },
        "cached_token_share": {"round_robin": 0.0, "lineside": 0.85},
        "cached_token_prediction_error": 0.1,
    }


def test_what_no_engine_said_is_unknown_not_zero() -> None:
    assert cached_share([_sample(0.1, None)]) is None
    assert ttft_p50_ms([]) is None
    assert Summary([], [], []).prediction_error is None


def test_progress_says_when_only_answers_are_awaited_and_when_none_is() -> None:
    def line(started_ago: float, is_over: bool = False) -> str:
        board = Board("title", ["e"], 16.0, started=time.monotonic() - started_ago)
        board.is_over = is_over
        return board.line()

    ends = "0 answered, median TTFT -"
    assert line(4.0) == f"title: 4 of 16 s, {ends}"
    assert line(16.0) == f"title: 16 s, waiting for the last, {ends}"
    assert line(17.0, True) == f"title: 16 s, and the last, {ends}"


async def test_what_is_shown_last_of_a_pass_says_that_it_is_over() -> None:
    shown = Console(file=io.StringIO(), width=100)
    board = Board("title", ["e"], 16.0)
    async with show(board, shown):
        assert not board.is_over
    assert isinstance(shown.file, io.StringIO)
    assert "16 s, and the last" in shown.file.getvalue()


def test_a_queue_is_what_waits_and_what_runs() -> None:
    board = Board("title", ["e"], 1.0)
    board.queue(
        "e",
        'vllm:num_requests_waiting{engine="0"} 2.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0"} 9.0\n'
        'vllm:num_requests_running{engine="0"} 3.0\n',
    )
    assert board._queues == {"e": 5}
