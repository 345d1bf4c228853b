"""Settings to a store, and to the cluster's secret in it. A store connects with its first call."""

import asyncio
from contextlib import AsyncExitStack

from coordinator.state.pulse import ANSWER_S
from coordinator.state.secret import Secret
from coordinator.state.settings import EtcdAccess
from coordinator.state.store import PUT_BACK_S, Store, StoreUnavailable, cluster_secret
from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.stores.etcd_calls import Access
from coordinator.state.stores.sqlite import SqliteStore
from lineside import logs

log = logs.get("coordinator.state.stores.opening")


async def opened(named: str, etcd: EtcdAccess, stack: AsyncExitStack) -> tuple[Store, Secret]:
    """Return the store, and the cluster's secret, which is in it. Raises `OSError`."""
    store = store_of(named, etcd)
    stack.push_async_callback(store.close)
    is_shared = named.startswith("etcd:")
    patience_s = PUT_BACK_S if is_shared else 0.0
    try:
        async with asyncio.timeout(ANSWER_S):
            await store.life()
        async with asyncio.timeout(ANSWER_S + patience_s):
            return store, Secret(await cluster_secret(store, patience_s))
    except (StoreUnavailable, TimeoutError) as error:
        why = str(error) or f"no answer within {ANSWER_S:g} s"
        if not is_shared:  # a file comes back with nobody's help
            raise OSError(f"cannot use the store `{named}`: {why}") from error
        log.warning("starting without the store", away=why)
        return store, Secret(None)


def store_of(named: str, etcd: EtcdAccess) -> Store:
    """Return the store that the setting `store` names."""
    kind, _, rest = named.partition(":")
    if kind != "etcd":
        return SqliteStore(":memory:" if kind == "memory" else rest)
    access = Access(
        endpoints=[endpoint.rstrip("/") for endpoint in rest.split(",")],
        ca_file=etcd.ca_file,
        cert_file=etcd.cert_file,
        key_file=etcd.key_file,
        server_name=etcd.server_name,
        user=etcd.user,
        password_file=etcd.password_file,
    )
    return EtcdStore(access, etcd.root)
