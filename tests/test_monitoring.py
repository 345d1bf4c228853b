"""Alerts and dashboards: what they name exists, and every value of the chart's is found."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.generators import manifests

ROOT = Path(__file__).parent.parent
FILES = ROOT / "deploy" / "charts" / "lineside" / "files"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
GENERATE = manifests()
RULES: list[Any] = [
    rule
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def metrics() -> dict[str, set[str]]:
    """Return each metric that the table has, as it is exposed, with its labels."""
    found: dict[str, set[str]] = {}
    rows = re.findall(r"^\| `(lineside_\w+)` \| (\w+) \| ([^|]*) \|", OPERATIONS, re.M)
    for name, kind, labels in rows:
        named = set(re.findall(r"`(\w+)`", labels)) | {"instance", "namespace"}
        if kind == "histogram":
            found |= {
                f"{name}_bucket": named | {"le"},
                f"{name}_sum": named,
                f"{name}_count": named,
            }
        else:
            found[name] = named
    return found


METRICS = metrics()


def expressions() -> list[tuple[str, str]]:
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    for name, (_, rows) in GENERATE.pages.DASHBOARDS.items():
        found += [(name, query) for query in GENERATE.pages.expressions(rows)]
    return found


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=lambda each: each[:60])
def test_a_query_names_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    named = set(re.findall(r"\blineside_\w+", expression))
    assert named and named <= METRICS.keys(), where
    labels = set().union(*(METRICS[name] for name in named))
    selected = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|=|!=)", expression))
    grouped = {
        label.strip()
        for by in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in by.split(",")
    }
    assert selected | grouped <= labels, where


def test_an_alert_says_what_it_is_and_where_to_read_on() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        said = rule["annotations"]
        assert said["summary"] and said["description"].endswith(".")
        page, _, anchor = said["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.M)
        anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert anchor in anchors, said["runbook"]


def test_legends_and_descriptions_use_labels_that_queries_keep() -> None:
    for name, (_, rows) in GENERATE.pages.DASHBOARDS.items():
        for row in rows:
            for panel in row.panels:
                for query, legend in panel.queries:
                    kept = {
                        label.strip()
                        for by in re.findall(r"\bby \(([^)]*)\)", query)
                        for label in by.split(",")
                    }
                    assert set(re.findall(r"{{(\w+)}}", legend)) <= kept, (name, panel.title)


def test_dashboards_are_the_generated_ones() -> None:
    written = {path: path.read_text() for path in (FILES / "dashboards").glob("*.json")}
    assert written == dict(GENERATE.dashboards()), "run `make manifests`"


@pytest.mark.parametrize(
    "path", sorted((FILES / "dashboards").glob("*.json")), ids=lambda p: p.stem
)
def test_panels_do_not_overlap_and_have_numbers_of_their_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not mine & cells
        cells |= mine


def test_every_gpu_metric_is_on_the_dashboard_of_gpus() -> None:
    _, rows = GENERATE.pages.DASHBOARDS["lineside-gpus"]
    shown = set(re.findall(r"lineside_gpu_\w+", " ".join(GENERATE.pages.expressions(rows))))
    left_out = {name for name in METRICS if name.startswith("lineside_gpu_")} - shown
    assert left_out == {
        "lineside_gpu_memory_used_bytes",  # as a ratio
        "lineside_gpu_memory_total_bytes",
        "lineside_gpu_memory_clock_hertz",
        "lineside_gpu_mig_enabled",
        "lineside_gpu_mig_memory_total_bytes",
        "lineside_gpu_mig_processes",
    }
