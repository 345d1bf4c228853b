"""The settings of the store: a part of `coordinator.config`."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from lineside.schema import FilePath, Name
from lineside.settings import Problem


class EtcdAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach the etcd that `store` names. Files are read again after a failed call."""

    root: Annotated[str, Meta(pattern=r"^/(\S*/)?\Z", title="/ or /NAME/")] = "/lineside/"
    """Begins every key; clusters that share an etcd have different ones."""
    ca_file: FilePath | None = None
    """Certificates that etcd's own must be signed by. `null`: the system's, for https."""
    cert_file: FilePath | None = None
    """Our certificate, for an etcd that asks for one."""
    key_file: FilePath | None = None
    """Its key."""
    server_name: Name | None = None
    """Name that etcd's certificate is for. `null`: the endpoint's host."""
    user: Name | None = None
    """Whom to log in as. `null`: etcd asks for no user, or goes by the certificate."""
    password_file: FilePath | None = None
    """File with that user's password."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        for one, other in (("cert_file", "key_file"), ("user", "password_file")):
            there, lacking = (one, other) if getattr(self, one) is not None else (other, one)
            if getattr(self, there) is not None and getattr(self, lacking) is None:
                yield Problem(
                    ((there,),),
                    "incomplete",
                    f"`{there}` is of no use without `{lacking}`",
                    f"name both, or take `{there}` away",
                )
