"""Every command, walked: JSON where it prints, an exit code, and errors that say where and what.

A new command is in none of the tables below, and fails the first test until it is.
"""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import main, parser
from cli.parsing import Parser
from coordinator.state import applied, copies
from coordinator.state.store import SECRET_KEY, Put
from coordinator.state.stores.sqlite import SqliteStore

pytestmark = pytest.mark.usefixtures("own_logs")  # some commands are processes

LEAVES = {
    " ".join(command.prog.split()[1:]): command
    for command in parser().walk()
    if not command._commands
}

NO_JSON = {"sim engine": "a server: where it listens is JSON, and all that it prints"}

POLICY = """\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {name: p, namespace: n}
spec: {rules: [{name: r, route: {consider: [{backend: {type: Local}}]}}]}
"""
CASES = """\
apiVersion: lineside.dev/v1alpha1
kind: PolicyTest
cases: [{note: nobody is there, request: {model: m}, expect: {refusal: {status: 503}}}]
"""


@dataclass(frozen=True)
class Gone:
    """What a command says where something that it needs is not there; `words` is one line of it."""

    argv: Sequence[str]
    code: int
    words: str


@dataclass(frozen=True)
class Works:
    """What a command's JSON has, as an object or as the first of a list, and its exit code."""

    argv: Sequence[str]
    has: str
    code: int = 0


ADMIN = "lineside: could not reach http://127.0.0.1:1: "
STORE = ("--store", "sqlite:TMP/none")
NO_FILE = "TMP/none: cannot be read: no such file or directory"

GONE = {
    "demo": Gone(["--seconds", "0"], 2, "`0` is not a number of seconds from 1 to 3600"),
    "up": Gone(["--engine", "http://127.0.0.1:1", "--resources", "TMP/none"], 1, "TMP/none"),
    "doctor": Gone(["--engine", "http://127.0.0.1:1"], 3, ""),
    "get engines": Gone(["--admin", ":1"], 3, ADMIN),
    "get policies": Gone(["--admin", ":1"], 3, ADMIN),
    "get members": Gone(["--admin", ":1"], 3, ADMIN),
    "get pools": Gone(["--admin", ":1"], 3, ADMIN),
    "get decisions": Gone(["--admin", ":1"], 3, ADMIN),
    "route": Gone(["-f", "TMP/request.json", "--admin", ":1"], 3, ADMIN),
    "policy lint": Gone(["TMP/none"], 3, "TMP/none"),
    "policy prove": Gone(["--tag", "t", "--never", "Provider", "TMP/none"], 3, "TMP/none"),
    "policy explain": Gone(["--request", "TMP/none", "TMP/policy.yaml"], 3, "TMP/none"),
    "policy test": Gone(["TMP/none"], 3, "TMP/none"),
    "policy diff": Gone(
        ["--decisions", "TMP/none", "TMP/policy.yaml", "TMP/policy.yaml"], 3, "TMP/none"
    ),
    "policy rollback": Gone(["--admin", ":1"], 3, ADMIN),
    "policy schema": Gone(["none"], 2, "`none` is one word too many"),
    "apply": Gone(["-f", "TMP/policy.yaml", *STORE], 3, "there is no file `TMP/none`"),
    "rollout history": Gone(STORE, 3, "there is no file `TMP/none`"),
    "rollout undo": Gone(STORE, 3, "there is no file `TMP/none`"),
    "replay": Gone(["TMP/none"], 3, NO_FILE),
    "store check": Gone(STORE, 3, "there is no file `TMP/none`"),
    "store export": Gone(["--to", "TMP/copy", *STORE], 3, "there is no file `TMP/none`"),
    "store import": Gone(["TMP/none", "--store", "sqlite:TMP/new"], 3, NO_FILE),
    "certs init": Gone(["--dir", "TMP/request.json"], 3, "`TMP/request.json"),
    "certs renew": Gone(["--dir", "TMP/none"], 3, "there is no authority in `TMP/none`"),
    "certs show": Gone(["TMP/none"], 3, "`TMP/none`: no such file or directory"),
    "coordinator": Gone(["--config", "TMP/none"], 3, NO_FILE),
    "agent": Gone(["--config", "TMP/none"], 3, NO_FILE),
    "sim engine": Gone(["--model-folder", "TMP/none"], 3, "TMP/none"),
}


LIVE = (
    *("demo", "up", "route", "policy rollback"),
    *("get engines", "get policies", "get members", "get pools", "get decisions"),
)
"""What runs before processes: tests/flow/test_cli_admin.py, test_demo.py and test_up.py."""

FILES = ("TMP/policy.yaml",)
SHARED = ("--store", "sqlite:TMP/store")

WORKS = {
    "doctor": Works(["--engine", "http://127.0.0.1:1"], "engines", 3),
    "policy lint": Works(FILES, "findings"),
    "policy prove": Works(["--tag", "t", "--never", "Provider", *FILES], "holds"),
    "policy explain": Works(["--request", "TMP/request.json", *FILES], "refusal", 1),
    "policy test": Works(["TMP/cases.yaml", *FILES], "cases"),
    "policy diff": Works(["--decisions", "TMP/records.json", *FILES, *FILES], "decisions"),
    "policy schema": Works([], "properties"),
    "apply": Works(["-f", *FILES, *SHARED], "set"),
    "rollout history": Works(SHARED, "in_force"),
    "rollout undo": Works([*SHARED, "--to", "1"], "as_set"),
    "replay": Works(["TMP/trace.jsonl", "--strategy", "random"], "strategies"),
    "store check": Works(SHARED, "took_s"),
    "store export": Works([*SHARED, "--to", "TMP/copy"], "revision"),
    "store import": Works(["TMP/old", "--store", "sqlite:TMP/new"], "written"),
    "certs init": Works(["--dir", "TMP/new"], "certificates"),
    "certs renew": Works(["--dir", "TMP/certs"], "certificates"),
    "certs show": Works(["TMP/certs/ca/ca.crt"], "certificates"),
    "coordinator": Works(["--config", "TMP/coordinator.yaml", "--check"], "findings"),
    "agent": Works(["--config", "TMP/agent.yaml", "--check"], "findings"),
}


def test_every_command_is_in_the_tables_and_prints_json() -> None:
    assert sorted(GONE) == sorted(LEAVES)
    assert sorted([*WORKS, *LIVE, *NO_JSON]) == sorted(LEAVES)
    assert [name for name, command in LEAVES.items() if not has_json(command)] == [*NO_JSON]


def has_json(command: Parser) -> bool:
    return "--json" in command._option_string_actions


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands of the tables take."""
    tmp_path = tmp_path_factory.mktemp("made")
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    (tmp_path / "request.json").write_text(json.dumps(chat))
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "cases.yaml").write_text(CASES)
    (tmp_path / "agent.yaml").write_text("coordinators: ['h:1']\ntransport: plaintext\n")
    (tmp_path / "coordinator.yaml").write_text("transport: plaintext\n")
    (tmp_path / "records.json").write_text("[]")
    asked = ({"timestamp": 1000 * n, "input_length": 9, "output_length": 1} for n in range(6))
    lines = (json.dumps(each | {"hash_ids": [n]}) for n, each in enumerate(asked))
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    assert main(["certs", "init", "--dir", str(tmp_path / "certs"), "--node", "a"]) == 0
    asyncio.run(_store(tmp_path))
    return tmp_path


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


async def _store(folder: Path) -> None:
    """Make a store with a set of resources, and a copy of it."""
    store = SqliteStore(str(folder / "store"))
    await store.transact({}, [Put(SECRET_KEY, b"s" * 32)])
    await applied.apply(store, [("policy.yaml", POLICY)], "me", 0.0)
    (folder / "old").write_bytes(b"".join((await copies.export(store)).lines()))
    await store.close()


def run(name: str, argv: Sequence[str], here: Path) -> int:
    """Run a command, `TMP` standing for a folder; return its exit code."""
    try:
        return main([*name.split(), *(word.replace("TMP", str(here)) for word in argv)])
    except SystemExit as exit:
        assert isinstance(exit.code, int)
        return exit.code


@pytest.mark.parametrize("as_json", [False, True], ids=["for people", "as JSON"])
@pytest.mark.parametrize("name", GONE)
def test_what_is_not_there_is_an_exit_code_and_a_line_that_says_where(
    name: str, as_json: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = GONE[name]
    more = ["--json"] if as_json and name not in NO_JSON else []
    assert run(name, [*gone.argv, *more], here) == gone.code
    said = capsys.readouterr()
    assert gone.words.replace("TMP", str(here)) in said.err + ("" if as_json else said.out)
    assert "Traceback" not in said.err
    assert "\x1b" not in said.out + said.err
    if as_json and said.out:
        json.loads(said.out)


@pytest.mark.parametrize("name", WORKS)
def test_what_a_command_finds_it_prints_for_people_or_as_one_line_of_json(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    works = WORKS[name]
    capsys.readouterr()
    assert run(name, [*works.argv, "--json"], here) == works.code
    line = capsys.readouterr().out
    said = json.loads(line)
    assert works.has in (said[0] if isinstance(said, list) else said)
    assert line.count("\n") == 1
    for path in ("new", "copy"):
        shutil.rmtree(here / path) if (here / path).is_dir() else (here / path).unlink(True)
    assert run(name, works.argv, here) == works.code
    told = capsys.readouterr()
    assert (told.out + told.err).strip()
    assert "\x1b" not in told.out + told.err
