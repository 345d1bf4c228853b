"""The names that requests may use, as `/v1/models` and `/v1/models/{id}` list them at every door.

Asks no engine: it lists what discovery and resources have said by now, in OpenAI's shape or in
Anthropic's.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from coordinator.apis import Api
from coordinator.engines import Engine, ServedModel
from coordinator.refusal import UnknownModel
from coordinator.service import Service

Card = dict[str, Any]

_PATH = re.compile("/v1/models(?:/(.+))?")


class Listing:
    """Lists models. One for all doors: a model is told to be as old by each."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(service.clock.unix())

    def answer(self, name: str | None, api: Api | None) -> Card | UnknownModel:
        """Return one model, or all where `name` is `None`, or that there is none of this name."""
        cards = self._cards()
        if name is None:
            return _page(cards, api)
        if name not in cards:
            return UnknownModel(name, tuple(sorted(cards)))
        return _shown(cards[name], api)

    def _cards(self) -> dict[str, Card]:
        now = self._service.clock.monotonic()
        cards: dict[str, Card] = {
            served.name: _card(view.engine, served, self._created)
            for view in self._service.cluster.snapshot(now).engines
            if not view.away
            for served in view.engine.models
        }
        return cards | self._meant(cards)

    def _meant(self, cards: Mapping[str, Card]) -> dict[str, Card]:
        """Return cards of the other names that requests may use: aliases, classes, providers'."""
        others: dict[str, Card] = {}
        for model in self._service.decider.rules.bench().layout.inventory.models.values():
            card = cards.get(model.name) or _foreign_card(model.name, self._created)
            for name in model.all_names - cards.keys():
                others.setdefault(name, {**card, "id": name})
        return others


def listed(path: str) -> tuple[str | None] | None:
    """Return which model a path is about, `(None,)`: all of them; `None`: it lists no models."""
    found = _PATH.fullmatch(path.partition("?")[0])
    return None if found is None else (None if found[1] is None else unquote(found[1]),)


def _page(cards: Mapping[str, Card], api: Api | None) -> Card:
    names = sorted(cards)
    data = [_shown(cards[name], api) for name in names]
    if api is not Api.ANTHROPIC_MESSAGES:
        return {"object": "list", "data": data}
    first, last = (names[0], names[-1]) if names else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def _shown(card: Card, api: Api | None) -> Card:
    return _as_anthropic(card) if api is Api.ANTHROPIC_MESSAGES else card


def _foreign_card(name: str, created: int) -> Card:
    """Return the card of a model that no engine of ours serves now."""
    card = {"id": name, "object": "model", "created": created, "owned_by": "lineside"}
    return {**card, "root": name, "parent": None, "max_model_len": None}


def _card(engine: Engine, served: ServedModel, created: int) -> Card:
    base = next((model.name for model in engine.models if model.lora is None), None)
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "lineside",
        "root": engine.group if served.lora is None else served.lora,
        "parent": None if served.lora is None else base,
        "max_model_len": served.max_model_len,
    }


def _as_anthropic(card: Card) -> Card:
    created = datetime.fromtimestamp(card["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = card["id"]
    return {"type": "model", "id": name, "display_name": name, "created_at": created}
