"""All that is wrong with a configuration is said at once, with its place and what to do."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agent.main
import coordinator.main
from agent.config import AgentConfig
from coordinator.config import Config, EngineSpec, Timeouts
from lineside.schema import describe, settings_of
from lineside.settings import read
from tests.authority import Authority


def told(kind: type[msgspec.Struct], text: str, environ: Any = None, flags: Any = None) -> str:
    found = read(kind, text.encode(), "c.yaml", environ, flags)
    assert isinstance(found, list), found
    return "\n".join(str(finding) for finding in found)


BROKEN = """\
transport: TLS
htpp: 1
stride: 0
log_level: inf
engines:
- url: "a:1"
  replays: x
- {url: "http://a:1"}
- {url: "http://a:1/"}
timeouts:
  total_s: 10
  idle_s: yes
name: 2020-01-01
stride: 4
"""

FINDINGS = """\
c.yaml:1:12: wrong-value: `transport` must be one of `plaintext`, `tls`, not `TLS`
  help: did you mean `tls`?
c.yaml:2:1: unknown-setting: there is no setting `htpp`
  help: did you mean `http`?
c.yaml:3:9: wrong-value: `stride` must be a whole number from 1 to 1024, not `0`
c.yaml:4:12: wrong-value: `log_level` must be one of `debug`, `error`, `info`, `warning`, not `inf`
  help: did you mean `info`?
c.yaml:6:8: wrong-value: `engines[0].url` must be http://HOST:PORT, not `a:1`
c.yaml:7:3: unknown-setting: there is no setting `replays` in `engines[0]`
  help: did you mean `replay`?
c.yaml:11:3: bounds: `first_token_s` is 120 s, above `total_s`, which is 10 s
  help: lower `first_token_s` or raise `total_s`: the whole answer ends first
c.yaml:12:11: wrong-value: `timeouts.idle_s` must be a number above 0, at most 86400, not `true`
c.yaml:13:7: wrong-value: `name` must be text of 1 to 253 characters
  help: put it in quotes
c.yaml:14:1: duplicate-setting: `stride` is set twice
  help: see line 3"""


def test_everything_is_said_at_once_in_the_order_of_the_file() -> None:
    assert told(Config, BROKEN) == FINDINGS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "a: [",
            "c.yaml:1:5: syntax: not valid YAML or JSON\n"
            "  help: did not find expected node content",
            id="broken YAML",
        ),
        pytest.param(
            "transport: plaintext\nagent_token: *hunter2",
            "c.yaml:2:14: syntax: not valid YAML or JSON\n  help: found undefined alias",
            id="broken YAML whose next word is a secret",
        ),
        pytest.param(
            "[]",
            "c.yaml:1:1: wrong-value: the document must be a mapping of settings",
            id="a list",
        ),
        pytest.param(
            "",
            "c.yaml:1:1: no-certificate: `transport` is `tls`, and agents' listener has no"
            " certificate\n"
            "  help: set `tls.cert_file` and `tls.key_file` (`lineside certs init` makes them), or"
            " `transport: plaintext` where nobody can listen in",
            id="nothing",
        ),
        pytest.param(
            "tls: {cert_file: c}",
            "c.yaml:1:7: half-a-pair: `cert_file` is there without `key_file`\n"
            "  help: set `key_file` as well, or neither",
            id="a certificate of agents' listener without its key",
        ),
        pytest.param(
            "{transport: plaintext, tls: {client_ca_file: c}}",
            "c.yaml:1:30: no-use: `client_ca_file` has no use where `transport` is `plaintext`\n"
            "  help: leave it out, or choose `tls`",
            id="agents' certificates over plaintext",
        ),
        pytest.param(
            "{node_proof: certificate, tls: {cert_file: c, key_file: k}}",
            "c.yaml:1:2: no-authority: nobody says which agents' certificates to trust\n"
            "  help: set `tls.client_ca_file`",
            id="proof by certificates that nobody signs",
        ),
        pytest.param(
            "{transport: plaintext, node_proof: service-account, agent_token: t}",
            "c.yaml:1:24: nobody-allowed: `service_accounts.accounts` names nobody, so that no"
            " agent may connect\n"
            "  help: name the ServiceAccount that agents run as: NAMESPACE/NAME\n"
            "c.yaml:1:53: no-use: `agent_token` has no use where `node_proof` is"
            " `service-account`\n"
            "  help: leave one of them out: an agent sends one token",
            id="two tokens, and none would do",
        ),
        pytest.param(
            "{transport: plaintext, timeouts: {zzz: 1}}",
            "c.yaml:1:35: unknown-setting: there is no setting `zzz` in `timeouts`\n"
            "  help: there are `connect_s`, `first_token_s`, `idle_s`, `total_s`, `receive_s`",
            id="nothing near, and few to name",
        ),
        pytest.param(
            "{transport: plaintext, zzz: 1}",
            "c.yaml:1:24: unknown-setting: there is no setting `zzz`\n"
            "  help: docs/settings.md lists them all",
            id="nothing near, and many",
        ),
        pytest.param(
            "{transport: plaintext, admin_token: 12345}",
            "c.yaml:1:37: wrong-value: `admin_token` must be text, or null\n"
            "  help: put it in quotes",
            id="a secret's value is not repeated",
        ),
        pytest.param(
            "{transport: plaintext, engines: [{url: 'http://user:pass@h:1'}]}",
            "c.yaml:1:40: wrong-value: `engines[0].url` must be http://HOST:PORT",
            id="nor are credentials in an address",
        ),
        pytest.param(
            "{transport: plaintext, engines: null}",
            "c.yaml:1:33: wrong-value: `engines` must be a list, each entry a mapping of settings,"
            " not `null`",
            id="null for a list",
        ),
        pytest.param(
            "{transport: plaintext, probe_s: .inf}",
            "c.yaml:1:33: wrong-value: `probe_s` must be a number above 0, at most 3600,"
            " not `.inf`",
            id="no bound",
        ),
        pytest.param(
            "{transport: plaintext, store: etcd}",
            "c.yaml:1:31: wrong-value: `store` must be `memory`, sqlite:PATH or etcd:http://HOST:PORT,...,"
            " not `etcd`",
            id="a store that is none",
        ),
        pytest.param(
            "transport: plaintext\nadmin: 0.0.0.0:8080",
            "c.yaml:2:1: same-address: `admin` listens where `http` does, on `0.0.0.0:8080`\n"
            "  help: give each listener a port of its own; port 0 takes any free one",
            id="two listeners on one port",
        ),
        pytest.param(
            "transport: plaintext\nengines:\n- url: http://a:1\n- url: http://a:1/\n",
            "c.yaml:4:3: duplicate-engine: `http://a:1/` is named twice with the same rank\n"
            "  help: the first is entry 1 of `engines`",
            id="the same server twice",
        ),
        pytest.param(
            "{transport: plaintext, engines: [{url: http://a:1, kv: tcp://a:2, replay: tcp://a:2}]}",
            "c.yaml:1:67: same-address: `replay` is the same endpoint as `kv`\n"
            "  help: a server publishes events and answers replays on two sockets",
            id="one endpoint for events and replay",
        ),
        pytest.param(
            "transport: plaintext\nroute: :9002",
            "c.yaml:2:1: nobody-allowed: `route` listens, and nobody may ask\n"
            "  help: name `gateways.allowed`, or set `gateways.anonymous` for this machine",
            id="a listener that answers nobody",
        ),
        pytest.param(
            "{transport: plaintext, route: ':9001', gateways: {anonymous: true}}",
            "c.yaml:1:24: same-address: `route` listens where `grpc` does, on `:9001`\n"
            "  help: give each listener a port of its own; port 0 takes any free one",
            id="gateways and agents on one port",
        ),
        pytest.param(
            "{transport: plaintext, gateways: {allowed: [{name: a}, {name: a, token_file: f}]}}",
            "c.yaml:1:46: one-proof: gateway `a` must have either a `token_file` or a"
            " `certificate`\n"
            "  help: by one of them it is known; over plaintext only a token is\n"
            "c.yaml:1:57: duplicate-gateway: gateway `a` is named twice\n"
            "  help: reports and logs know gateways by name",
            id="gateways that cannot be told apart",
        ),
        pytest.param(
            "{transport: plaintext, gateways: {allowed: [{name: a, certificate: c}]}}",
            "c.yaml:1:55: no-authority: nobody says which certificates to trust\n"
            "  help: set `gateways.client_ca_file`",
            id="a certificate that nobody vouches for",
        ),
        pytest.param(
            "{transport: plaintext, gateways: {transport: plaintext, cert_file: c, key_file: k}}",
            "c.yaml:1:57: no-use: `cert_file` has no use where `transport` is `plaintext`\n"
            "  help: leave it out, or choose `tls`\n"
            "c.yaml:1:71: no-use: `key_file` has no use where `transport` is `plaintext`\n"
            "  help: leave it out, or choose `tls`",
            id="certificates over plaintext",
        ),
        pytest.param(
            "{transport: plaintext, gateways: {cert_file: c, self_signed_dir: d}}",
            "c.yaml:1:35: half-a-pair: `cert_file` is there without `key_file`\n"
            "  help: set `key_file` as well, or neither\n"
            "c.yaml:1:49: no-use: `self_signed_dir` has no use beside `cert_file`\n"
            "  help: leave one of them out",
            id="half a certificate",
        ),
    ],
)
def test_a_coordinators_findings(text: str, said: str) -> None:
    assert told(Config, text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "transport: plaintext\ncoordinators: []",
            "c.yaml:2:15: wrong-value: `coordinators` must be a list, each entry HOST:PORT;"
            " at least one, not 0",
            id="nobody to report to",
        ),
        pytest.param(
            "transport: plaintext\ncoordinators:\n- c:1\n- c\n",
            "c.yaml:4:3: wrong-value: `coordinators[1]` must be HOST:PORT, not `c`",
            id="no port",
        ),
        pytest.param(
            "transport: plaintext\ncoordinators:\n- c:1\n- c:1\n",
            "c.yaml:4:3: duplicate-coordinator: `c:1` is named twice\n"
            "  help: one stream is kept to each coordinator",
            id="one coordinator twice",
        ),
        pytest.param(
            "transport: plaintext\ncoordinators: ['c:1']\nscrape_idle_s: 3\n",
            "c.yaml:3:1: bounds: `scrape_idle_s` is 3 s, and a load is stale after 2 s\n"
            "  help: stay below 2 s, or every engine would be shown as stale",
            id="scraped too seldom to be fresh",
        ),
        pytest.param(
            "transport: plaintext\ncoordinators: ['c:1']\nscrape_idle_s: 0.2\n",
            "c.yaml:3:1: bounds: `scrape_busy_s` is 0.5 s, above `scrape_idle_s`,"
            " which is 0.2 s\n  help: busy servers are looked at more often, not less",
            id="busy servers more seldom than idle ones",
        ),
    ],
)
def test_an_agents_findings(text: str, said: str) -> None:
    assert told(AgentConfig, text) == said


def test_flags_win_over_variables_and_variables_over_the_file() -> None:
    environ = {
        "LINESIDE_NODE": "from the environment",
        "LINESIDE_NAME": "from the environment",
        "LINESIDE_TIMEOUTS_IDLE_S": "5",
        "LINESIDE_ADMIN_TOKEN": "123",
        "LINESIDE_STRIDE": "",
        "LINESIDE_COORDINATOR_SERVICE_HOST": "10.0.0.1",
    }
    document = b"{transport: plaintext, node: a, name: b, stride: 2, timeouts: {connect_s: 1}}"
    assert read(Config, document, "c.yaml", environ, {"--name": "from a flag"}) == Config(
        transport="plaintext",
        node="from the environment",
        name="from a flag",
        stride=2,
        admin_token="123",
        timeouts=Timeouts(connect_s=1.0, idle_s=5.0),
    )


def test_a_list_in_a_variable_is_written_with_commas() -> None:
    environ = {"LINESIDE_COORDINATORS": "a:1, b:2", "LINESIDE_TRANSPORT": "plaintext"}
    assert read(AgentConfig, b"", "c.yaml", environ) == AgentConfig(
        coordinators=("a:1", "b:2"), transport="plaintext"
    )


def test_what_variables_and_flags_say_is_checked_as_well() -> None:
    environ = {"LINESIDE_STEP_S": "x", "LINESIDE_GRPC": ":8080"}
    assert told(Config, "transport: plaintext", environ, {"--probe-s": "-1"}) == (
        "LINESIDE_STEP_S: wrong-value: `step_s` must be a number above 0, at most 60, not `x`\n"
        "--probe-s: wrong-value: `probe_s` must be a number above 0, at most 3600, not `-1`\n"
        "LINESIDE_GRPC: same-address: `grpc` listens where `http` does, on `:8080`\n"
        "  help: give each listener a port of its own; port 0 takes any free one"
    )


def test_where_the_command_line_asks_is_no_listen_address() -> None:
    document = b"transport: plaintext"
    environ = {"LINESIDE_ADMIN": "http://127.0.0.1:9090"}
    assert read(Config, document, "c.yaml", environ) == Config(transport="plaintext")


@pytest.mark.parametrize("kind", [Config, AgentConfig, EngineSpec, Timeouts])
def test_every_setting_can_be_described(kind: type[msgspec.Struct]) -> None:
    assert all(describe(setting.type) for setting in settings_of(kind))


MAINS = [
    pytest.param(coordinator.main.main, "transport: plaintext\n", id="coordinator"),
    pytest.param(agent.main.main, "transport: plaintext\ncoordinators: ['c:1']\n", id="agent"),
]


@pytest.mark.parametrize(("main", "good"), MAINS)
def test_check_says_and_ends(
    main: Any, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(good)
    assert main(["--check", "--config", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: no findings\n", "")
    file.write_text(f"{good}log_levl: info\n")
    lines = good.count("\n") + 1
    assert main(["--check", "--config", str(file)]) == 1
    assert capsys.readouterr() == (
        "",
        f"{file}:{lines}:1: unknown-setting: there is no setting `log_levl`\n"
        "  help: did you mean `log_level`?\n",
    )
    assert main(["--check", "--json", "--config", str(file)]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "findings": [
            {
                "file": str(file),
                "line": lines,
                "col": 1,
                "code": "unknown-setting",
                "severity": "error",
                "message": "there is no setting `log_levl`",
                "help": "did you mean `log_level`?",
            }
        ]
    }


CERTIFIED = [
    pytest.param(
        coordinator.main.main,
        "tls: {cert_file: C/tls.crt, key_file: C/none.key, client_ca_file: C/none.crt}\n"
        "etcd: {ca_file: C/tls.key}\n"
        "gateways: {cert_file: C/tls.crt, key_file: C/other.key}\n",
        [
            (1, "`tls.key_file` cannot be read: no such file or directory"),
            (1, "`tls.client_ca_file` cannot be read: no such file or directory"),
            (2, "`etcd.ca_file` holds no certificate in PEM"),
            (
                3,
                "`gateways.key_file` is not the key of the certificate in `gateways.cert_file`",
            ),
        ],
        id="coordinator",
    ),
    pytest.param(
        agent.main.main,
        "coordinators: ['c:1']\n"
        "tls: {ca_file: C/none.crt, cert_file: C/tls.crt, key_file: C/tls.key}\n",
        [(2, "`tls.ca_file` cannot be read: no such file or directory")],
        id="agent",
    ),
]


@pytest.mark.parametrize(("main", "said", "found"), CERTIFIED)
def test_check_names_each_file_of_certificates_that_cannot_be_used(
    main: Any,
    said: str,
    found: list[tuple[int, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    authority = Authority(tmp_path)
    for name in ("tls", "other"):
        authority.sign(name)
    file = tmp_path / "c.yaml"
    file.write_text(said.replace("C/", f"{tmp_path}/"))
    assert main(["--check", "--json", "--config", str(file)]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(each["line"], each["message"]) for each in findings] == found
    assert {each["code"] for each in findings} == {"unusable-file"}


def test_check_reads_the_resources_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"transport: plaintext\nresources: {tmp_path}/none\n")
    assert coordinator.main.main(["--check", "--config", str(file)]) == 1
    assert f"{tmp_path}/none" in capsys.readouterr().err


@pytest.mark.parametrize(("main", "good"), MAINS)
def test_a_file_with_findings_does_not_run(
    main: Any, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(good)
    assert main(["--config", str(file), "--log-level", "loud"]) == 1
    assert "--log-level: wrong-value: `log_level` must be one of" in capsys.readouterr().err


@pytest.mark.parametrize(("main", "good"), MAINS)
def test_a_file_that_is_not_there_cannot_run(
    main: Any, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", "--config", str(tmp_path / "none")]) == 3
    assert "cannot be read: no such file or directory" in capsys.readouterr().err
