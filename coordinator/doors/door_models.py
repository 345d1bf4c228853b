"""`/v1/models` and `/v1/models/{id}`, in OpenAI's shape or in Anthropic's. Asks no engine."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from coordinator.apis import Api
from coordinator.doors.calls import Call
from coordinator.engines import Engine, ServedModel
from coordinator.refusal import UnknownModel
from coordinator.service import Service

Card = dict[str, Any]


class ModelsDoor:
    """Lists the names that requests may use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(service.clock.unix())

    async def all(self, call: Call) -> web.StreamResponse:
        """Answer with all models."""
        cards = self._cards()
        names = sorted(cards)
        if call.api is Api.ANTHROPIC_MESSAGES:
            page: Card = {"data": [_as_anthropic(cards[name]) for name in names]}
            first, last = (names[0], names[-1]) if names else (None, None)
            page |= {"has_more": False, "first_id": first, "last_id": last}
            return web.json_response(page, headers=call.headers)
        listed = {"object": "list", "data": [cards[name] for name in names]}
        return web.json_response(listed, headers=call.headers)

    async def one(self, call: Call) -> web.StreamResponse:
        """Answer with one model, or that there is none of this name."""
        cards, name = self._cards(), call.request.match_info["id"]
        if name not in cards:
            return call.refusal(UnknownModel(name, tuple(sorted(cards))))
        card = cards[name]
        shown = _as_anthropic(card) if call.api is Api.ANTHROPIC_MESSAGES else card
        return web.json_response(shown, headers=call.headers)

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
