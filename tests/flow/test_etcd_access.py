"""An etcd that asks for certificates, or for a user: who is let in, and what is renewed."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from cli.main import main
from coordinator.state.store import Change, Put, StoreUnavailable, cluster_secret
from coordinator.state.stores import etcd_calls
from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.stores.etcd_calls import Access
from coordinator.state.stores.sqlite import SqliteStore
from tests import etcds
from tests.authority import Authority
from tests.etcds import etcdctl
from tests.proxies import proxy
from tests.waiting import until

pytestmark = [pytest.mark.flow, etcds.needs_etcd]


@contextmanager
def secured(folder: Path, authority: Authority) -> Iterator[etcds.Member]:
    server = authority.sign("server")
    words = (
        *(f"--cert-file={server.cert}", f"--key-file={server.key}"),
        *(f"--trusted-ca-file={authority.file}", "--client-cert-auth"),
    )
    with etcds.etcd(folder, *words) as member:
        yield member


async def test_certificates_are_asked_for_and_may_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    with secured(tmp_path, authority) as member:
        proven = Access([member.url], authority.file, client.cert, client.key)
        store = EtcdStore(proven)
        assert await store.transact({}, [Put("k", b"1")])
        limit_s = etcd_calls.LIMIT_S
        monkeypatch.setattr(etcd_calls, "LIMIT_S", 1.0)  # of calls that are to fail
        strange = Authority(tmp_path, "stranger").sign("strange")
        for access in (
            Access([member.url], authority.file),  # no certificate of ours
            Access([member.url], authority.file, strange.cert, strange.key),
            Access([member.url], str(tmp_path / "stranger.pem"), client.cert, client.key),
        ):
            refused = EtcdStore(access)
            with pytest.raises(StoreUnavailable, match="etcd: "):
                await refused.get("k")
            await refused.close()
        lost = EtcdStore(Access([member.url], str(tmp_path / "none.pem")))
        with pytest.raises(StoreUnavailable, match=r"cannot read .*: no such file"):
            await lost.get("k")
        await lost.close()

        # Files are exchanged while it runs: used once a call has failed with what was read before.
        exchanged = EtcdStore(Access([member.url], authority.file, strange.cert, strange.key))
        with pytest.raises(StoreUnavailable):
            await exchanged.get("k")
        os.replace(client.cert, strange.cert)
        os.replace(client.key, strange.key)
        monkeypatch.setattr(etcd_calls, "LIMIT_S", limit_s)
        found = await exchanged.get("k")
        assert found is not None
        assert found.value == b"1"
        await exchanged.close()
        await store.close()


async def test_a_handshake_may_take_longer_than_a_try(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    with secured(tmp_path, authority) as member:
        async with proxy(member.url) as between:
            between.late_s = 0.6  # for each of the several answers that a handshake has
            store = EtcdStore(Access([between.url], authority.file, client.cert, client.key))
            assert await store.get("k") is None
            await store.close()


async def test_a_name_other_than_the_address_can_be_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    with secured(tmp_path, authority) as member:
        access = Access(
            [member.url], authority.file, client.cert, client.key, server_name="etcd.example"
        )
        store = EtcdStore(access)
        assert await store.get("k") is None
        await store.close()


@contextmanager
def with_users(folder: Path, ttl_s: int) -> Iterator[etcds.Member]:
    """An etcd with a user that may use keys below /lineside/ alone."""
    with etcds.etcd(folder, "--auth-token-ttl", str(ttl_s)) as member:
        etcdctl(member, "user", "add", "root:r00t")
        etcdctl(member, "user", "grant-role", "root", "root")
        etcdctl(member, "role", "add", "lineside")
        etcdctl(
            member, "role", "grant-permission", "lineside", "--prefix", "readwrite", "/lineside/"
        )
        etcdctl(member, "user", "add", "lineside:pa55")
        etcdctl(member, "user", "grant-role", "lineside", "lineside")
        etcdctl(member, "auth", "enable")
        yield member


async def test_a_user_s_token_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = tmp_path / "password"
    password.write_text("pa55\n")
    with with_users(tmp_path, ttl_s=1) as member:
        access = Access([member.url], user="lineside", password_file=str(password))
        store, seen = EtcdStore(access), list[Change]()
        after = (await store.range("w/")).revision

        async def watch() -> None:
            async with aclosing(store.watch("w/", after)) as changes:
                async for batch in changes:
                    seen.extend(batch)

        watching = asyncio.create_task(watch())
        lease = await store.grant(5)
        assert await store.transact({}, [Put("w/0", b"0", lease)])
        await until(lambda: "deleted a simple token" in member.log.read_text())
        await store.keep(lease)
        assert await store.transact({}, [Put("w/1", b"1")])
        member.kill()  # simple tokens die with the server
        await asyncio.to_thread(member.start)
        assert await store.transact({}, [Put("w/2", b"2")])
        await until(lambda: len(seen) >= 3)
        assert [(change.key, change.value) for change in seen] == [
            ("w/0", b"0"),
            ("w/1", b"1"),
            ("w/2", b"2"),
        ]
        watching.cancel()
        await store.close()

        monkeypatch.setattr(etcd_calls, "LIMIT_S", 2.0)
        for said, user, root, why in (
            ("wrong", access, "/lineside/", "authentication failed"),
            ("pa55", Access([member.url]), "/lineside/", "user name is empty"),
            ("pa55", access, "/other/", "permission denied"),
        ):
            password.write_text(said)
            refused = EtcdStore(user, root)
            with pytest.raises(StoreUnavailable, match=why):
                await refused.get("k")
            await refused.close()


async def test_a_store_is_copied_from_a_file_to_an_etcd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lineside(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, ["store", *words])
        return code, *capsys.readouterr()

    path, copy = tmp_path / "s.db", tmp_path / "copy.jsonl"
    before = SqliteStore(str(path))
    secret = await cluster_secret(before)
    lease = await before.grant(60)
    await before.transact(
        {}, [Put("members/coordinators/a", b"{}", lease), Put("predict/v1", b"{}")]
    )
    await before.close()
    with etcds.etcd(tmp_path) as member:
        etcd = f"etcd:{member.url}"
        code, out, _ = await lineside("check", "--store", etcd)
        assert (code, out.splitlines()[-1]) == (1, "no secret: no coordinator ever started")
        code, out, _ = await lineside("export", "--store", f"sqlite:{path}", "--to", str(copy))
        assert (code, out.split()[:2], copy.stat().st_mode & 0o777) == (0, ["2", "keys"], 0o600)
        code, _, err = await lineside("export", "--store", f"sqlite:{path}", "--to", str(copy))
        assert (code, "cannot be written: file exists" in err) == (3, True)
        for written in (2, 0):
            code, out, _ = await lineside("import", "--store", etcd, str(copy))
            assert (code, out) == (0, f"{written} of 2 keys were written\n")
        after = etcds.store_of(member)
        assert await cluster_secret(after) == secret
        await after.transact({}, [Put("predict/v1", b"other")])
        code, _, err = await lineside("import", "--store", etcd, str(copy))
        assert (code, "other values there: predict/v1" in err) == (1, True)
        code, out, _ = await lineside("import", "--store", etcd, "--replace", str(copy))
        assert (code, out) == (0, "1 of 2 keys were written\n")
        code, out, _ = await lineside("check", "--store", etcd, "--json")
        said = json.loads(out)
        assert (code, set(said["took_s"])) == (0, {"read", "write", "watch", "lease"})
        assert said["software"] == await after.about()
        assert said["keys"]["cluster"] == {"keys": 1, "bytes": 46}
        assert not (await after.range("store/probe")).entries
        await after.close()
    code, _, err = await lineside("check", "--store", "sqlite:/none/there.db")
    assert (code, "there is no file" in err) == (3, True)
