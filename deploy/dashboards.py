"""The Grafana dashboards, as `make manifests` writes them: `panels` has what they show.

Every query names metrics of docs/operations.md alone; a test holds that, and that Prometheus can
read each.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from deploy.panels import GPUS, OVERVIEW, Panel, Row

WIDTH = 24
"""Of Grafana's grid."""

HEIGHT = 8

SCHEMA = 39
"""Of dashboards, as Grafana 10 and newer read them."""

DASHBOARDS = {
    "lineside": ("Lineside", OVERVIEW),
    "lineside-gpus": ("Lineside: GPUs", GPUS),
}


def dashboards() -> Iterator[tuple[str, str]]:
    """Yield each dashboard's file name and text."""
    for uid, (title, rows) in DASHBOARDS.items():
        yield f"{uid}.json", json.dumps(_dashboard(uid, title, rows), indent=1) + "\n"


def expressions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield each query, as Prometheus gets it."""
    for row in rows:
        for panel in row.panels:
            for query, _ in panel.queries:
                yield (
                    query.replace("$where,", "")
                    .replace("{$where}", "")
                    .replace("$__rate_interval", "5m")
                )


def _dashboard(uid: str, title: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "uid": uid,
        "title": title,
        "tags": ["lineside"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), _namespace()]},
        "panels": list(_panels(rows)),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _namespace() -> dict[str, Any]:
    return {
        "name": "namespace",
        "label": "Namespace",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$source"},
        "query": "label_values(lineside_build_info, namespace)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for row in rows:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "gridPos": place,
            "collapsed": False,
            "panels": [],
        }
        number, top, left = number + 1, top + 1, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + HEIGHT
            yield _panel(number, panel, {"h": HEIGHT, "w": panel.width, "x": left, "y": top})
            number, left = number + 1, left + panel.width
        top += HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": {"type": "prometheus", "uid": "$source"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                # Outside Kubernetes there is no such label, which `.*` takes, too.
                "expr": query.replace("$where", 'namespace=~"$namespace"'),
                "legendFormat": legend,
            }
            for n, (query, legend) in enumerate(panel.queries)
        ],
    }
