"""Help fits a screen; what cannot be parsed is one line after the usage, with the nearest word."""

import pytest

from cli.main import main, parser
from cli.strategies import ALL

COMMANDS = [command.prog.split()[1:] for command in parser().walk()]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_screen(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert exit.value.code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_rare_options_are_kept_for_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["sim", "engine", "--help-all"])
    assert exit.value.code == 0
    assert "--decode-s-per-context-token SECONDS" in capsys.readouterr().out
    assert "--decode-s-per-context-token" not in parser().format_help()


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        pytest.param(
            ["rout"], "lineside: there is no command `rout`; did you mean `route`?", id="near"
        ),
        pytest.param(["fly"], "lineside: there is no command `fly`; see --help", id="far"),
        pytest.param(["usage"], "lineside: there is no command `usage`; see --help", id="to come"),
        pytest.param(
            ["get", "limits"],
            "lineside get: there is no command `limits`; there are `engines`, `policies`,",
            id="a thing to come",
        ),
        pytest.param(
            ["get", "engine"],
            "lineside get: there is no command `engine`; did you mean `engines`?",
            id="a part of a command",
        ),
        pytest.param(
            ["up", "--engin", "http://h:1"],
            "lineside up: there is no option `--engin`; did you mean `--engine`?",
            id="options are not abbreviated, and said before what is missing",
        ),
        pytest.param(
            ["get", "engines", "--jsn"],
            "lineside get engines: there is no option `--jsn`; did you mean `--json`?",
            id="an option",
        ),
        pytest.param(
            ["coordinator", "--config", "-", "--log-levl=debug"],
            "lineside coordinator: there is no option `--log-levl`; did you mean `--log-level`?",
            id="a setting's flag",
        ),
        pytest.param(
            ["get", "decisions", "one", "two"],
            "lineside get decisions: `two` is one word too many",
            id="a word too many",
        ),
        pytest.param(
            ["get", "decisions", "--limit", "0"],
            "lineside get decisions: argument --limit: `0` is not a number from 1 to 100000",
            id="a limit of nothing",
        ),
        pytest.param(
            ["get", "engines", "--admin", "http://u:p@h:1"],
            "lineside get engines: argument --admin: write http://HOST:PORT of the admin listener",
            id="an address with more than an address",
        ),
        pytest.param(
            ["store", "check", "--store", "redis:"],
            "lineside store check: argument --store: `redis:` is not a store: write memory,",
            id="a store of another kind",
        ),
        pytest.param(
            ["replay", "t.jsonl", "--strategy", "orcle"],
            "lineside replay: --strategy cannot be `orcle`; did you mean `oracle`? it is one of "
            + ", ".join(ALL),
            id="a choice",
        ),
        pytest.param(
            [], "lineside: the following arguments are required: COMMAND; see --help", id="nothing"
        ),
        pytest.param(
            ["rollout"],
            "lineside rollout: the following arguments are required: COMMAND; there are `history`,"
            " `undo`",
            id="half a command",
        ),
        pytest.param(
            ["doctor", "--kubernetes", "--engine", "http://h:1"],
            "lineside doctor: say one of --engine URL and --kubernetes",
            id="two of what only one can be",
        ),
        pytest.param(
            ["doctor", "--kubernetes", "--probe"],
            "lineside doctor: --probe goes with --engine",
            id="an option of the other form",
        ),
    ],
)
def test_an_error_is_the_usage_and_one_line(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(argv)
    usage, said = capsys.readouterr().err.splitlines()
    assert exit.value.code == 2
    assert usage.startswith("usage: lineside")
    assert said.startswith(line)


def test_secrets_are_no_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["coordinator", "--config", "-", "--admin-token", "hunter2"])
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize("named", ["option", "variable"])
def test_a_kubeconfig_that_is_not_there_is_named(
    named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", "/no/such/one" if named == "option" else "/no/such/file")
    words = ["--kubeconfig", "/no/such/file"] if named == "option" else []
    assert main(["doctor", "--kubernetes", *words]) == 3
    said, help = capsys.readouterr().err.splitlines()
    assert said.endswith("cannot log in to the cluster: there is no file /no/such/file")
    assert "KUBECONFIG" in help
