"""`lineside certs`: what it makes, and what it says of certificates."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from cli.main import main
from lineside.certificates import Files, described, nodes_of
from tests.authority import Authority


def made(folder: Path, *words: str) -> int:
    return main(["certs", "init", "--dir", str(folder), *words])


def verified(ca: Path, cert: Path, server: str = "") -> bool:
    """Whether a verifier accepts a server of a name, or without one a client."""
    authority, found = (x509.load_pem_x509_certificate(file.read_bytes()) for file in (ca, cert))
    policy = PolicyBuilder().store(Store([authority]))
    try:
        if server:
            policy.build_server_verifier(x509.DNSName(server)).verify(found, [])
        else:
            policy.build_client_verifier().verify(found, [])
    except VerificationError:
        return False
    return True


def test_it_makes_an_authority_a_coordinator_and_nodes(tmp_path: Path) -> None:
    at = tmp_path / "certs"
    names = ("--coordinator-name", "c.example", "--coordinator-name", "10.0.0.4")
    assert made(at, *names, "--node", "gpu-1", "--node", "gpu-2", "--days", "30") == 0
    files = {str(path.relative_to(at)) for path in at.rglob("*") if path.is_file()}
    folders = ("coordinator", "nodes/gpu-1", "nodes/gpu-2")
    assert files == {"ca/ca.crt", "ca/ca.key"} | {
        f"{folder}/{name}" for folder in folders for name in ("ca.crt", "tls.crt", "tls.key")
    }
    for path in at.rglob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert path.parent.stat().st_mode & 0o077 == 0
    ca = at / "ca/ca.crt"
    assert verified(ca, at / "coordinator/tls.crt", "c.example")
    assert verified(ca, at / "nodes/gpu-1/tls.crt")
    assert not verified(ca, at / "nodes/gpu-1/tls.crt", "gpu-1")
    assert not verified(ca, at / "coordinator/tls.crt", "d.example")
    assert not verified(ca, at / "coordinator/tls.crt")
    (coordinator,) = described((at / "coordinator/tls.crt").read_bytes())
    assert coordinator.names == ("c.example", "10.0.0.4")
    (node,) = described((at / "nodes/gpu-1/tls.crt").read_bytes())
    assert nodes_of(node.uris, node.names) == {"gpu-1"}
    assert timedelta(days=29) < node.ends - datetime.now(UTC) < timedelta(days=30)
    found = x509.load_pem_x509_certificate((at / "nodes/gpu-1/tls.crt").read_bytes())
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    for folder in folders:
        Files(*(at / folder / name for name in ("tls.crt", "tls.key", "ca.crt")))


def test_a_node_is_added_and_the_rest_stays(tmp_path: Path) -> None:
    assert made(tmp_path, "--node", "a") == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert made(tmp_path, "--node", "a", "--node", "b") == 0
    assert {path: path.read_bytes() for path in before} == before
    assert verified(tmp_path / "ca/ca.crt", tmp_path / "nodes/b/tls.crt")


def test_all_is_renewed_by_the_same_authority(tmp_path: Path) -> None:
    assert made(tmp_path, "--node", "a", "--coordinator-name", "x.svc", "--days", "1") == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["certs", "renew", "--dir", str(tmp_path)]) == 0
    kept = {path.relative_to(tmp_path) for path in before if path.read_bytes() == before[path]}
    ours = {"ca/ca.crt", "ca/ca.key", "coordinator/ca.crt", "nodes/a/ca.crt"}
    assert kept == {Path(name) for name in ours}
    (again,) = described((tmp_path / "coordinator/tls.crt").read_bytes())
    assert again.names == ("x.svc",)
    assert again.ends - datetime.now(UTC) > timedelta(days=360)
    assert verified(tmp_path / "ca/ca.crt", tmp_path / "nodes/a/tls.crt")


def test_a_secret_is_what_the_chart_mounts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(tmp_path, "--format", "kubernetes", "--namespace", "n") == 0
    secret = yaml.safe_load(capsys.readouterr().out)
    assert secret.pop("data").keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "lineside-agents-tls", "namespace": "n"},
    }
    assert main(["certs", "renew", "--dir", str(tmp_path), "--format", "kubernetes"]) == 0
    data = yaml.safe_load(capsys.readouterr().out)["data"]
    (renewed,) = described(base64.b64decode(data["tls.crt"]))
    assert renewed.names == ("lineside-agents.n.svc", "lineside-agents.n.svc.cluster.local")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--format", "kubernetes", "--node", "a"], "leave out --node", id="a Secret"),
        pytest.param(
            ["--coordinator-name", "other"], "remove it to have another", id="other names"
        ),
        pytest.param(["--days", "3650.0", "--node", "b"], "before that: ask for fewer", id="long"),
    ],
)
def test_what_cannot_be_made_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(tmp_path) == 0
    assert made(tmp_path, *words) == 3
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("node", ["", "a/b", "..", "-a", "a b", "ä"])
def test_a_name_that_is_no_node_s_is_refused(node: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        made(tmp_path, "--node", node)
    assert refused.value.code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["", "a b", "10.0.0.4:9001", "https://c.example", "../c", "[::1]", "x" * 300, "a\nb", "é" * 99],
)
def test_a_name_that_is_no_machine_s_is_refused(name: str, tmp_path: Path) -> None:
    """No agent that connects would ever look for it."""
    with pytest.raises(SystemExit) as ended:
        made(tmp_path / "certs", "--coordinator-name", name)
    assert ended.value.code == 2 and not (tmp_path / "certs").exists()


def test_names_of_machines_are_taken_as_they_are_written(tmp_path: Path) -> None:
    names = ("c.example", "*.pool.example", "bücher.example", "fd00:0::7", "a_b")
    words = [word for name in names for word in ("--coordinator-name", name)]
    assert made(tmp_path, *words) == 0
    (found,) = described((tmp_path / "coordinator/tls.crt").read_bytes())
    expected = ("c.example", "*.pool.example", "xn--bcher-kva.example", "a_b", "fd00::7")
    assert sorted(found.names) == sorted(expected)


def test_renewing_makes_no_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "renew", "--dir", str(tmp_path / "x")]) == 3
    assert "there is no authority" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_show_says_who_and_until_when(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(tmp_path, "--node", "gpu-1") == 0
    file = tmp_path / "nodes/gpu-1/tls.crt"
    assert main(["certs", "show", str(file)]) == 0
    out = capsys.readouterr().out
    assert "node gpu-1" in out and "364 days more" in out and "lineside authority " in out
    assert main(["certs", "show", str(file), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["certificates"]
    assert (said["nodes"], said["names"], said["holds"]) == (["gpu-1"], [], True)
    old = Authority(tmp_path).sign("old", hours=(-9, -1), dns=["a.svc"]).cert
    assert main(["certs", "show", old]) == 1
    out = capsys.readouterr().out
    assert "no: it has expired, on" in out and "a.svc, 127.0.0.1" in out
    assert main(["certs", "show", str(tmp_path / "ca/ca.key")]) == 3
    assert main(["certs", "show", str(tmp_path / "nowhere")]) == 3
