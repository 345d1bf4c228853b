"""Pages that are written from code are as the code is; tables of states name every state."""

import asyncio
import dataclasses
import importlib.util
import re
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from agent.config import AgentConfig
from agent.kubelet import NoAnswer
from agent.scrape import Failure
from coordinator import engines, refusal
from coordinator.build import build
from coordinator.config import Config, EngineSpec, Timeouts
from coordinator.doors.admin import LISTED
from coordinator.holdings import feed
from coordinator.metrics import CACHE_STATES
from coordinator.readiness import CODES
from coordinator.records import End
from coordinator.tokens.tokenized import Reason
from lineside.schema import settings_of
from lineside.signals import Events

ROOT = Path(__file__).parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _section(title: str) -> str:
    """Return what stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", OPERATIONS, re.M | re.S)
    assert found is not None, title
    return found[1]


def _named(title: str) -> list[str]:
    """Return the names that a section's table starts its rows with."""
    return re.findall(r"^\| `([^`]+)` \|", _section(title), re.M)


def test_every_end_of_a_request_is_explained() -> None:
    assert sorted(_named("How requests end")) == sorted(get_args(End))


def test_generating_the_pages_changes_nothing() -> None:
    stale = [p.name for p, text in _generate().pages().items() if p.read_text() != text]
    assert stale == [], "run `make docs`"


@pytest.mark.parametrize("kind", [Config, AgentConfig, EngineSpec, Timeouts])
def test_every_setting_has_its_meaning_below_it(kind: type[Any]) -> None:
    docs = _generate().field_docs(kind)
    assert list(docs) == list(kind.__struct_fields__)
    assert all(text.endswith(".") for text in docs.values())


def test_every_metric_has_a_meaning_of_its_own() -> None:
    rows = re.findall(r"^\| `(lineside_\w+)` \| \w+ \| [^|]*\| ([^|]+) \|$", OPERATIONS, re.M)
    assert len(rows) > 40
    assert len({name for name, _ in rows}) == len(rows)
    assert len({meaning for _, meaning in rows}) == len(rows)


async def test_every_debug_endpoint_has_an_example() -> None:
    async with AsyncExitStack() as stack:
        parts = await build(Config(transport="plaintext"), stack)
        router = parts.admin.application(asyncio.get_running_loop()).router
        paths = [resource.canonical for resource in router.resources()]
        answered = {
            (each.method, each.resource.canonical) for each in router.routes() if each.resource
        }
    listed = set(re.findall(r"^(GET|POST) +(\S+) ", LISTED, re.M)) | {("GET", "/")}
    assert listed == {each for each in answered if each[0] != "HEAD"}
    assert sorted(_named("Debug endpoints") + _named("Health and readiness")) == sorted(paths)


def test_metrics_that_the_text_names_exist() -> None:
    tables = set(re.findall(r"^\| `(lineside_\w+)` ", OPERATIONS, re.M))
    named = {name for page in ("operations.md", "architecture.md") for name in _metrics_in(page)}
    assert named - tables == set()


def _metrics_in(page: str) -> set[str]:
    return set(re.findall(r"\blineside_[a-z_]+[a-z]\b", (ROOT / "docs" / page).read_text()))


@pytest.mark.parametrize(
    ("title", "states"),
    [
        pytest.param("An engine's cache", CACHE_STATES, id="cache states"),
        pytest.param("An engine's cache", engines._REASONS, id="cache states with a reason"),
        pytest.param(
            "An agent's word on an engine's events", [e.value for e in Events], id="events"
        ),
        pytest.param("What is known of a request's tokens", [r.value for r in Reason], id="tokens"),
        pytest.param("What a coordinator serves around", CODES, id="degraded"),
        pytest.param("Refusals", refusal.REASONS, id="refusals"),
        pytest.param("Scrapes and GPUs", get_args(Failure), id="scrapes"),
        pytest.param("Questions to the kubelet", get_args(NoAnswer), id="kubelet"),
        pytest.param("Digests that do not fit", [r.value for r in feed.Reason], id="resyncs"),
    ],
)
def test_a_table_of_states_names_every_state(title: str, states: Any) -> None:
    assert sorted(_named(title)) == sorted(states)


def test_a_refusal_has_the_status_that_the_table_says() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", _section("Refusals"), re.M)
    replies = [refusal.to_reply(_made(kind)) for kind in get_args(refusal.Refusal)]
    assert dict(rows) == {reply.reason: str(reply.status) for reply in replies}


def _made(kind: type[Any]) -> Any:
    """Return a refusal of some kind; its fields do not matter."""
    some = {int: 1, float: 1.0, str: "connect", tuple[str, ...]: ("m",)}
    hints = get_type_hints(kind)
    needed = (f for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING)
    return kind(*(some.get(hints[field.name]) for field in needed))


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_settings_that_the_text_names_exist() -> None:
    known = {s.name for kind in (Config, AgentConfig, EngineSpec) for s in settings_of(kind)}
    ports = re.findall(r"\| (?:coordinator|agent) `(\w+)` \|", _section("Ports"))
    assert ports and set(ports) <= known
