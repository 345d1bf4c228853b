"""Files that say as whom an API server is asked, read again while they change."""

from pathlib import Path

import pytest

from coordinator.kube.login import HOST, PORT, CannotLogIn, Mounted, pod_url
from tests.authority import Authority


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_is_told_where_its_api_server_is(host: str, url: str) -> None:
    assert pod_url({HOST: host, PORT: "443"}) == url


@pytest.mark.parametrize("said", [{}, {HOST: "10.0.0.1"}, {HOST: "", PORT: "443"}])
def test_who_is_no_pod_is_told(said: dict[str, str]) -> None:
    with pytest.raises(CannotLogIn, match="this is no pod"):
        pod_url(said)


def certificate(folder: Path, name: str) -> bytes:
    return Path(Authority(folder, name).file).read_bytes()


async def test_files_that_are_exchanged_count_and_connections_are_kept_until_then(
    tmp_path: Path,
) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first\n")
    ca.write_bytes(certificate(tmp_path, "one"))
    login = Mounted("https://h:443/", str(ca), str(token))
    first = await login.access()
    token.write_text("second\n")
    second = await login.access()
    assert (first.url, first.authorization) == ("https://h:443", "Bearer first")
    assert second.authorization == "Bearer second" and second.tls is first.tls
    ca.write_bytes(certificate(tmp_path, "two"))
    assert (await login.access()).tls is not first.tls


async def test_authorities_that_are_none_are_told_without_what_they_say(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("hunter2")
    with pytest.raises(CannotLogIn, match="our own account's files: ") as raised:
        await Mounted("https://h:443", str(ca), None).access()
    assert "hunter2" not in str(raised.value)


async def test_a_pod_s_token_that_was_exchanged_is_shown_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    login = Mounted("https://h:443", None, str(token))
    refused = await login.access()
    assert await login.after_refusal(refused) is None  # nobody exchanged it: asking is no use
    token.write_text("second\n")
    renewed = await login.after_refusal(refused)
    assert renewed is not None and renewed.authorization == "Bearer second"
