"""Settings to a store. Opens nothing: a store connects with its first call."""

from coordinator.state.settings import EtcdAccess
from coordinator.state.store import Store
from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.stores.etcd_calls import Access
from coordinator.state.stores.sqlite import SqliteStore


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
