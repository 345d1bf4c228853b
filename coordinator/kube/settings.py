"""The settings of the cluster that is read: a part of `coordinator.config`."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lineside.schema import FilePath, Name
from lineside.settings import Problem

Namespace: TypeAlias = Annotated[
    str, Meta(pattern=r"^(\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)\Z", title="a namespace, or *")
]

EVERY = "*"


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster whose custom resources are in force, and whose pods are engines."""

    access: Literal["none", "in-cluster", "kubeconfig"] = "none"
    """How to reach its API server: as the pod's service account, or as a kubeconfig says. `none`:
    no cluster is read."""
    kubeconfig: FilePath | None = None
    """File with addresses and logins, read again when it changes. `null`: `KUBECONFIG`, else
    `~/.kube/config`."""
    context: Name | None = None
    """The file's context to use. `null`: its current one."""
    namespaces: tuple[Namespace, ...] = ("default",)
    """Where resources and pods are read; `*`: everywhere, which takes rights of the whole
    cluster."""
    engine_key_file: FilePath | None = None
    """File with the key that servers in pods want (`--api-key`), one for all, read again when it
    changes. `null`: they want none."""
    key_dir: Annotated[str, Meta(pattern=r"^/\S*\Z", title="/PATH")] = "/etc/lineside/secrets"
    """Custom resources may name key files below this directory and no others: who may write a
    resource need not be allowed to read what this process can."""
    key_variables: tuple[Name, ...] = ()
    """Variables of the environment that custom resources may name as keys. None: no variable."""

    pod_deletion_cost: bool = False
    """Write what each engine's cache is worth to its pod, as the annotation by which scaling down
    chooses. The leader alone writes; it takes the right to patch pods."""

    @property
    def is_on(self) -> bool:
        """Whether a cluster is read."""
        return self.access != "none"

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        if not self.namespaces:
            text = "`namespaces` is empty, so nothing would be read"
            yield Problem((("namespaces",),), "nothing-read", text, "name some, or `*`")
        if EVERY in self.namespaces and len(self.namespaces) > 1:
            text = "`*` is every namespace, and others are named beside it"
            yield Problem((("namespaces",),), "no-use", text, "keep `*` alone, or leave it out")
        if self.pod_deletion_cost and not self.is_on:
            text = "`pod_deletion_cost` has no use where no cluster is read"
            yield Problem((("pod_deletion_cost",),), "no-use", text, "set `access`")
        for name in ("kubeconfig", "context"):
            if self.access != "kubeconfig" and getattr(self, name) is not None:
                text = f"`{name}` has no use where `access` is `{self.access}`"
                yield Problem(((name,),), "no-use", text, "set `access: kubeconfig`")


def kubernetes_problems(said: Kubernetes, resources: str | None) -> Iterator[Problem]:
    """Yield what is wrong with these settings beside those of files with resources."""
    if said.is_on and resources is not None:
        yield Problem(
            (("resources",), ("kubernetes",)),
            "two-sources",
            "`resources` names files, and custom resources of a cluster are read as well",
            "keep one: apply the files to the cluster, or set `kubernetes.access: none`",
        )
