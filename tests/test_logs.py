"""Logs: one JSON object a line, fields, and no word of what an exception says."""

import json

import pytest

from lineside import logs

pytestmark = pytest.mark.usefixtures("own_logs")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_holds_what_happened_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logs.get("agent.report").info("stream lost", coordinator="c", attempts=2)
    (line,) = lines(capsys)
    assert line.pop("ts")
    assert line == {
        "level": "info",
        "logger": "agent.report",
        "event": "stream lost",
        "coordinator": "c",
        "attempts": 2,
    }


def test_a_fault_names_places_and_classes_and_never_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.setup()
    try:
        try:
            raise KeyError("my secret prompt")
        except KeyError as error:
            raise ValueError("about my secret prompt") from error
    except ValueError:
        logs.get("door").fault("request failed", request="r1")
    printed = capsys.readouterr().err
    assert "secret" not in printed
    fault = json.loads(printed)["fault"]
    assert [entry for entry in fault if ":" not in entry] == [
        "KeyError",
        "which led to",
        "ValueError",
    ]
    assert all("test_logs.py" in entry for entry in fault if ":" in entry)
