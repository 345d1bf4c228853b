"""Our own account's files, which somebody may have got wrong."""

from pathlib import Path

import pytest

from coordinator.trust.api_server import InCluster
from coordinator.trust.token_review import CannotAsk


@pytest.mark.parametrize("token", [b"", b"\n", b"\xff\xfe", b"two\nlines", b"a\0b", b"a b"])
async def test_a_file_without_a_token_is_said_to_be_one(tmp_path: Path, token: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(token)
    with pytest.raises(CannotAsk) as raised:
        await InCluster("http://127.0.0.1:1", None, str(file)).create("/x", {})
    assert str(raised.value) == "our own account's files: no token is in `token_file`"
