"""HTTP side of a simulated server: vLLM's routes, translated to the drivers and back.

Everything that can be refused is refused before a request reaches the core. A client that goes
away has its requests aborted: its handler is cancelled, and the exchange closes on the way out.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lineside import logs
from simulate import embeddings, messages, replies, requests, responses
from simulate.config import Config
from simulate.control import Control
from simulate.core import Request
from simulate.driver import Exchange, Token
from simulate.embeddings import Embedding, EmbeddingAnswer
from simulate.faults import DieInAnswer, Faults
from simulate.generation import Generation
from simulate.messages import Count, Message, MessageAnswer
from simulate.metrics import CONTENT_TYPE, Metrics
from simulate.publisher import PUBLISHER_HWM
from simulate.ranks import Ranks
from simulate.replies import JsonObject
from simulate.requests import Chat, Completion, Detokenize, Refused, Tokenize
from simulate.responses import Response, ResponseAnswer, Shelf
from simulate.tokens import Tokenizer

MAX_BODY_BYTES = 64 << 20
"""A larger body is refused by the HTTP library, with status 413."""

SOURCES_SINCE = (0, 31)
"""The first release that says where it publishes."""

_log = logs.get("simulate.server")


class Answer(Protocol):
    """What was accepted and is computed, in the words of its API."""

    @property
    def requests(self) -> list[Request]: ...
    def reply(self, answers: Sequence[list[int]]) -> JsonObject: ...


class Streamed(Answer, Protocol):
    """What may be streamed."""

    @property
    def stream(self) -> bool: ...
    def opening(self) -> list[bytes]: ...
    def events(self, tokens: Sequence[Token], *, last: bool) -> list[bytes]: ...
    def ending(self) -> bytes: ...


class Server:
    """The routes of one server."""

    def __init__(
        self,
        *,
        config: Config,
        tokenizer: Tokenizer,
        generation: Generation,
        ranks: Ranks,
        metrics: Metrics,
        faults: Faults,
        control: Control,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._generation = generation
        self._ranks = ranks
        self._metrics = metrics
        self._faults = faults
        self._control = control
        self._created = int(time.time())
        self._shelf = Shelf(config.store_responses)

    def app(self) -> web.Application:
        """Return the application."""
        middlewares: list[Middleware] = [_boundary]
        if self._config.faults:
            middlewares.append(self._control.strike)
        app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_dress)
        gets: dict[str, Handler] = {
            "/v1/models": self._models,
            "/health": _empty,
            "/ping": _empty,
            "/version": self._version,
            "/load": self._load,
            "/metrics": self._page,
            "/is_sleeping": self._is_sleeping,
        }
        if self._config.version >= SOURCES_SINCE:
            gets["/kv_event_sources"] = self._sources
        if not self._config.pooling:
            gets["/v1/responses/{id}"] = self._stored
        posts = self._computing() | {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/reset_prefix_cache": self._reset,
            "/sleep": self._sleep,
            "/wake_up": self._wake_up,
            "/ping": _empty,
        }
        app.router.add_routes([web.get(path, run, allow_head=False) for path, run in gets.items()])
        app.router.add_routes([web.post(path, run) for path, run in posts.items()])
        if self._config.faults:
            self._control.add_to(app)
        return app

    def _computing(self) -> dict[str, Handler]:
        """Return what the model does, by path."""
        if self._config.pooling:
            return {"/v1/embeddings": self._embedding}
        return {
            "/v1/chat/completions": self._chat,
            "/v1/chat/completions/render": self._render,
            "/v1/completions": self._completion,
            "/v1/messages": self._message,
            "/v1/messages/count_tokens": self._count,
            "/v1/responses": self._response,
            "/v1/responses/{id}/cancel": self._cancel,
        }

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Chat, request.content_type, await request.read())
        return await self._answer(request, self._generation.chat(body, request.headers))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Completion, request.content_type, await request.read())
        return await self._answer(request, self._generation.completion(body, request.headers))

    async def _render(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Chat, request.content_type, await request.read())
        return _json(self._generation.chat(body, request.headers).rendered())

    async def _message(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Message, request.content_type, await request.read())
        chat = messages.as_chat(body, leads=self._generation.leads)
        try:
            asked = MessageAnswer(self._generation.chat(chat, request.headers))
        except Refused as refused:
            return _json(messages.error(refused), refused.status)
        return await self._answer(request, asked)

    async def _count(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Count, request.content_type, await request.read())
        chat = messages.as_chat(body, leads=self._generation.leads)
        try:
            return _json(messages.counted(self._generation.counted(chat)))
        except Refused as refused:
            return _json(messages.error(refused), refused.status)

    async def _response(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Response, request.content_type, await request.read())
        self._shelf.check(body)
        before = body.previous_response_id
        kept = None if before is None else self._shelf.find(before)
        asked = self._generation.chat(responses.as_chat(body, kept), request.headers)
        return await self._answer(request, ResponseAnswer(body, asked, self._shelf))

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        return _json(self._shelf.find(request.match_info["id"]).reply)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        return _json(self._shelf.cancel(request.match_info["id"]))

    async def _embedding(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Embedding, request.content_type, await request.read())
        completion = embeddings.as_completion(body)
        asked = self._generation.completion(completion, request.headers)
        return await self._whole(request, EmbeddingAnswer(body, asked))

    async def _answer(self, request: web.Request, asked: Streamed) -> web.StreamResponse:
        if not asked.stream:
            return await self._whole(request, asked)
        driver = self._ranks.choose(request.headers.get("X-data-parallel-rank"))
        death = self._faults.strike(DieInAnswer)
        with driver.open(asked.requests) as exchange:
            return await _stream(request, asked, exchange, death)

    async def _whole(self, request: web.Request, asked: Answer) -> web.StreamResponse:
        driver = self._ranks.choose(request.headers.get("X-data-parallel-rank"))
        death = self._faults.strike(DieInAnswer)
        with driver.open(asked.requests) as exchange:
            reply = asked.reply(await exchange.all_tokens())
        if death:
            _hang_up(request)
        return _json(reply)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Tokenize, request.content_type, await request.read())
        requests.check_model(body.model, self._generation.served)
        text = self._generation.rendered(body) if body.prompt is None else body.prompt
        tokens = self._tokenizer.encode(text)
        return _json(
            {
                "count": len(tokens),
                "max_model_len": self._config.max_model_len,
                "tokens": tokens,
                "token_strs": self._tokenizer.spell(tokens) if body.return_token_strs else None,
            }
        )

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        body = requests.parse(Detokenize, request.content_type, await request.read())
        requests.check_model(body.model, self._generation.served)
        requests.check_ids(body.tokens, self._tokenizer.vocabulary_size)
        return _json({"prompt": self._tokenizer.decode(body.tokens)})

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        preempt = request.query.get("reset_running_requests", "").lower() in ("true", "1")
        return _json({"success": self._ranks.reset(preempt_running=preempt)})

    async def _models(self, _: web.Request) -> web.StreamResponse:
        names = self._config.names()
        cards: list[tuple[str, str, str | None]]
        cards = [(name, self._config.model_name, None) for name in names]
        cards += [(name, name, names[0]) for name in self._config.lora]
        length = self._config.max_model_len
        return _json(
            {
                "object": "list",
                "data": [
                    replies.model_card(name, self._created, root, parent, length)
                    for name, root, parent in cards
                ],
            }
        )

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return _json({"version": self._config.release})

    async def _load(self, _: web.Request) -> web.StreamResponse:
        return _json({"server_load": self._ranks.open_exchanges})

    async def _page(self, _: web.Request) -> web.StreamResponse:
        body = self._metrics.render([driver.core for driver in self._ranks.drivers])
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _sleep(self, request: web.Request) -> web.StreamResponse:
        level = request.query.get("level", "1")
        if level not in ("0", "1", "2"):
            raise Refused(400, f"sleep level must be 0, 1 or 2, got {level}")
        for driver in self._ranks.drivers:
            driver.sleep(int(level))
        return web.Response()

    async def _wake_up(self, _: web.Request) -> web.StreamResponse:
        for driver in self._ranks.drivers:
            driver.wake()
        return web.Response()

    async def _is_sleeping(self, _: web.Request) -> web.StreamResponse:
        return _json({"is_sleeping": self._ranks.sleeping})

    async def _sources(self, _: web.Request) -> web.StreamResponse:
        if not self._config.publishes:
            return _json({})
        common = {
            "buffer_steps": self._config.replay_buffer_steps,
            "hwm": PUBLISHER_HWM,
            "max_queue_size": PUBLISHER_HWM,
            "topic": self._config.kv_topic,
        }
        return _json(
            {
                str(driver.rank): {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": driver.publisher.endpoint,
                    "replay_endpoint": driver.publisher.replay_endpoint,
                    **common,
                }
                for driver in self._ranks.drivers
            }
        )


async def _stream(
    request: web.Request, asked: Streamed, exchange: Exchange, death: DieInAnswer | None
) -> web.StreamResponse:
    """Send a stream; stop at once when the client is gone."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    # A write may meet the closed connection before this handler is cancelled.
    with contextlib.suppress(ConnectionResetError):
        if death is None:
            await _write(request, response, asked, exchange)
        else:
            await _write_until(death.after_chunks, request, response, asked, exchange)
    return response


async def _write(
    request: web.Request, response: web.StreamResponse, asked: Streamed, exchange: Exchange
) -> None:
    """Send tokens as they come; several in one chunk when the client reads slowly."""
    async for chunks in _chunks(asked, exchange):
        if not response.prepared:
            await response.prepare(request)
        await response.write(b"".join(chunks))
    await response.write_eof(asked.ending())


async def _write_until(
    count: int,
    request: web.Request,
    response: web.StreamResponse,
    asked: Streamed,
    exchange: Exchange,
) -> None:
    """Send that many chunks at most, and never an end."""
    async for chunks in _chunks(asked, exchange):
        if not count:
            break
        if not response.prepared:
            await response.prepare(request)
        await response.write(b"".join(chunks[:count]))
        count -= min(count, len(chunks))
    _hang_up(request)


async def _chunks(asked: Streamed, exchange: Exchange) -> AsyncIterator[list[bytes]]:
    opening = asked.opening()
    async for tokens in exchange.tokens():
        yield [*opening, *asked.events(tokens, last=exchange.over)]
        opening = []


def _hang_up(request: web.Request) -> None:
    """Close the connection as the end of the process would: after what was written, in mid-air."""
    if request.transport is not None:
        request.transport.close()


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=replies.encode(body), status=status, headers={"Content-Type": "application/json"}
    )


async def _empty(_: web.Request) -> web.StreamResponse:
    return web.Response()


async def _dress(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"
    response.headers["Vary"] = "Origin"


@web.middleware
async def _boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer refusals and unknown routes in the engine's shapes."""
    try:
        return await handler(request)
    except Refused as refused:
        return _json(replies.error(refused), refused.status)
    except web.HTTPException as error:
        reply = _json({"detail": error.reason}, error.status)
        if "Allow" in error.headers:
            reply.headers["Allow"] = error.headers["Allow"]
        return reply
    except Exception:  # noqa: BLE001 - the one request boundary of this door
        _log.fault("a request failed", path=request.path)
        return _json(replies.error(Refused(500, "internal error", "InternalServerError")), 500)
