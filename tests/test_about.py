"""What every process says of itself."""

import re
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from types import ModuleType

from prometheus_client import CollectorRegistry, generate_latest

from lineside.about import About, is_compiled
from tests.manual_clock import ManualClock


def module(name: str, kind: type[ExtensionFileLoader] | type[SourceFileLoader]) -> ModuleType:
    made = ModuleType(name)
    made.__loader__ = kind(name, name)
    return made


def test_one_module_of_ours_that_is_compiled_makes_a_compiled_process() -> None:
    plain = {"policies.stage": module("policies.stage", SourceFileLoader), "none": ModuleType("n")}
    others = {"msgspec._core": module("msgspec._core", ExtensionFileLoader)}
    assert not is_compiled(plain | others)
    assert is_compiled(plain | {"coordinator.route": module("r", ExtensionFileLoader)})


def test_metrics_say_the_release_and_what_the_clock_shows() -> None:
    registry = CollectorRegistry()
    registry.register(About(ManualClock(5.0)))
    page = generate_latest(registry).decode()
    (said,) = re.findall(r"^lineside_build_info\{(.*)\} 1\.0$", page, re.M)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', said))
    assert labels.keys() == {"version", "compiled"} and labels["compiled"] in ("yes", "no")
    assert re.search(r"^lineside_clock_seconds 1\.700000005e\+09$", page, re.M)
