"""Writes the manifests: CRDs from the structs of `policies`, plain manifests from the Helm chart.

`make manifests` runs it; tests hold that running it changes nothing. The CRDs need nothing but this
repository; the plain manifests need Helm (`--helm FILE`), and are left alone without it.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from policies.crd import definitions

DEPLOY = Path(__file__).parent

WRITTEN = "# Written by `make manifests`; change the code or the chart, not this file.\n"


class _Plain(yaml.SafeDumper):
    """Writes every value out: anchors are hard to read, and some tools refuse them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dumped(document: Mapping[str, Any]) -> str:
    """Return a document as the manifests are written."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True)


def crds() -> Iterator[tuple[Path, str]]:
    """Yield each file of the CRDs: for `kubectl apply -k`, and for their chart."""
    names = []
    for definition in definitions():
        name = f"{definition['spec']['names']['plural']}.yaml"
        names.append(name)
        yield DEPLOY / "crds" / name, WRITTEN + dumped(definition)
        yield DEPLOY / "charts" / "lineside-crds" / "files" / name, WRITTEN + dumped(definition)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    }
    yield DEPLOY / "crds" / "kustomization.yaml", WRITTEN + dumped(kustomization)


def main() -> int:
    """Write the files that differ, and name them."""
    for path, text in crds():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"wrote {path.relative_to(DEPLOY.parent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
