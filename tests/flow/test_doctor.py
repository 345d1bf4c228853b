"""Simulated engines that lack something, examined over sockets."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import aiohttp
import pytest

from cli.examination import Report, examine
from cli.main import main
from tests.flow.test_reading import opened_port
from tests.simulated import engine, post

pytestmark = pytest.mark.flow

Engines = dict[str, dict[str, str]]

LACKING = {
    "whole": ("--byte-hashes",),
    "mute": ("--no-kv-events", "--no-prompt-tokens-details"),
    "uncached": ("--no-prefix-caching",),
    "odd": ("--block-size", "24"),
    "old": ("--release", "0.25.1"),
}


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Run an engine for each condition."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(engine(*options)) for name, options in LACKING.items()}


def wrong(report: Report) -> list[tuple[str, str]]:
    return [(check.level, check.code) for check in report.checks if check.level != "ok"]


async def test_each_lack_is_named(engines: Engines) -> None:
    urls = {name: f"http://{listening['http']}" for name, listening in engines.items()}
    specs = [{"url": url} for url in urls.values()]
    specs[-1] |= {"kv": engines["old"]["events"], "replay": engines["old"]["replay"]}
    reports = dict(zip(urls, await examine(specs, with_probe=True), strict=True))
    assert {name: wrong(report) for name, report in reports.items()} == {
        "whole": [("warning", "tokenizer")],
        "mute": [
            ("problem", "events"),
            ("warning", "token_details"),
            ("warning", "tokenizer"),
        ],
        "uncached": [
            ("problem", "prefix_caching"),
            ("problem", "events"),
            ("problem", "prefix_caching"),
            ("warning", "tokenizer"),
        ],
        "odd": [("problem", "block_size"), ("warning", "tokenizer")],
        "old": [("note", "version"), ("warning", "tokenizer")],
    }
    said = {check.code: check.message for check in reports["whole"].checks}
    assert said["own_events"].endswith("with 32-byte hashes")
    assert "came again" in said["replayed"]


async def test_a_publisher_that_connects_is_heard_at_its_address() -> None:
    with opened_port() as port, engine("--kv-connect", f"tcp://127.0.0.1:{port}") as listening:
        (report,) = await examine([{"url": f"http://{listening['http']}"}], with_probe=True)
    assert wrong(report) == [("warning", "events"), ("warning", "tokenizer")]
    assert "own_events" in [check.code for check in report.checks]


async def test_a_replay_socket_that_is_silent_is_found_out() -> None:
    with engine("--faults") as listening:
        async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
            await post(client, "/sim/faults", fault="ignore_replays")
        (report,) = await examine([{"url": f"http://{listening['http']}"}], with_probe=True)
    assert wrong(report) == [("warning", "replayed"), ("warning", "tokenizer")]


async def test_another_engines_events_are_told_from_its_own(engines: Engines) -> None:
    old, other = engines["old"], engines["whole"]
    spec = {"url": f"http://{old['http']}", "kv": other["events"], "replay": other["replay"]}
    (report,) = await examine([spec], with_probe=True)
    (own,) = [check for check in report.checks if check.code == "own_events"]
    assert (own.level, own.message) == (
        "problem",
        f"the probe's blocks were not announced at {other['events']}: requests go to it by load"
        " alone",
    )


def test_the_command_tells_by_its_exit_code(
    engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, mute = (f"http://{engines[name]['http']}" for name in ("whole", "mute"))
    assert main(["doctor", "--engine", whole]) == 0
    assert capsys.readouterr().out.startswith(f"{whole}\n  ok       vLLM 0.32.0 serves")
    assert main(["doctor", "--json", "--engine", whole, "--engine", mute]) == 1
    said = json.loads(capsys.readouterr().out)["engines"]
    assert [(one["url"], one["reached"], one["problems"]) for one in said] == [
        (whole, True, 0),
        (mute, True, 1),
    ]
    assert main(["doctor", "--engine", "http://127.0.0.1:9"]) == 3
    assert "cannot connect: connection refused" in capsys.readouterr().out
