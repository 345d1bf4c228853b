"""Writes the manifests: CRDs from the structs of `policies`, plain manifests from the Helm chart,
and what the images are made of from the lock.

`make manifests` runs it; tests hold that running it changes nothing. The plain
manifests need Helm (`--helm FILE`), and are left alone without it.
"""

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from deploy import bill, values_page
from deploy import dashboards as pages
from policies.crd import definitions

DEPLOY = Path(__file__).parent
DAEMONSET = DEPLOY.parent / "daemonset"
CHART = DEPLOY / "charts" / "lineside"
DOCS = DEPLOY.parent / "docs"

NAMESPACE = "lineside"

WRITTEN = "# Written by `make manifests`; change the code or the chart, not this file.\n"
RENDERED = "# Of the chart with SHA-256 "

Document: TypeAlias = dict[str, Any]
Files: TypeAlias = Iterator[tuple[Path, str]]


class _Plain(yaml.SafeDumper):
    """Writes every value out: anchors are hard to read, and some tools refuse them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)


def dumped(document: Mapping[str, Any]) -> str:
    """Return a document as the manifests are written."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True)


def crds() -> Files:
    """Yield each file of the CRDs: for `kubectl apply -k`, and for their chart."""
    names = []
    for definition in definitions():
        name = f"{definition['spec']['names']['plural']}.yaml"
        names.append(name)
        yield DEPLOY / "crds" / name, WRITTEN + dumped(definition)
        yield DEPLOY / "charts" / "lineside-crds" / "files" / name, WRITTEN + dumped(definition)
    yield DEPLOY / "crds" / "kustomization.yaml", _kustomization(names)


def dashboards() -> Files:
    """Yield each Grafana dashboard, where the chart finds it."""
    for name, text in pages.dashboards():
        yield CHART / "files" / "dashboards" / name, text


def values() -> Files:
    """Yield the page of the chart's values."""
    yield DOCS / "chart-values.md", values_page.page((CHART / "values.yaml").read_text())


def bills() -> Files:
    """Yield what each image is made of: its lock, and its SBOM."""
    for extra in ("agent", "coordinator"):
        yield DEPLOY / "images" / f"{extra}.lock", bill.lock_of(extra)
        yield DEPLOY / "images" / f"{extra}.cdx.json", bill.sbom_of(extra)


def plain(helm: Path) -> Files:
    """Yield each plain manifest, rendered from the chart."""
    documents = list(rendered(helm, "--set", "monitoring.enabled=true,monitoring.alerts=true"))
    monitors = [each for each in documents if each["apiVersion"].startswith("monitoring.")]
    others = [each for each in documents if each not in monitors]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    for folder, component in ((DEPLOY, "coordinator"), (DAEMONSET, "agent")):
        name = f"{component}.yaml"
        also = [namespace] if component == "coordinator" else []
        yield folder / name, _of_chart([*also, *_of(component, others)])
        yield folder / "kustomization.yaml", _kustomization([name])
        yield folder / "monitoring" / name, _of_chart(_of(component, monitors))
        yield folder / "monitoring" / "kustomization.yaml", _kustomization([name])


def rendered(helm: Path, *options: str, name: str = "lineside") -> Iterator[Document]:
    """Yield what the chart makes, without the marks of Helm."""
    command: tuple[str | Path, ...] = (
        helm,
        "template",
        name,
        CHART,
        "--namespace",
        NAMESPACE,
        *options,
    )
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    for document in yaml.safe_load_all(made.stdout):
        if document:
            yield _unmarked(document)


def chart_digest() -> str:
    """Return a hash of all that the plain manifests are made of."""
    digest = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(CHART)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {k: _unmarked(v) for k, v in value.items() if k != "app.kubernetes.io/managed-by"}


def _of(component: str, documents: Sequence[Document]) -> list[Document]:
    label = "app.kubernetes.io/component"
    return [each for each in documents if each["metadata"]["labels"][label] == component]


def _of_chart(documents: Sequence[Document]) -> str:
    head = f"{WRITTEN}{RENDERED}{chart_digest()}.\n"
    return head + "---\n".join(dumped(each) for each in documents)


def _kustomization(names: Sequence[str]) -> str:
    said = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(names),
    }
    return WRITTEN + dumped(said)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files that differ, and name them."""
    parser = argparse.ArgumentParser(description="Write the manifests.")
    parser.add_argument("--helm", type=Path, help="Helm's program, for the plain manifests")
    helm: Path | None = parser.parse_args(argv).helm
    for path, text in (*crds(), *bills(), *dashboards(), *values()):
        _write(path, text)
    for path, text in plain(helm) if helm else ():  # of the chart with what was just written
        _write(path, text)
    return 0


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        sys.stdout.write(f"wrote {path.relative_to(DEPLOY.parent)}\n")


if __name__ == "__main__":
    sys.exit(main())
