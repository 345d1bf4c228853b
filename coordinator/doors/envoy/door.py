"""The external-processing door: drives one `exchange` for each stream of a gateway.

The one place where the door meets gRPC. A stream never ends without an answer that is waited for:
some gateways take that for leave to send the request on as it is, or with its body lost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import grpc

from coordinator.doors.envoy import contract, wire
from coordinator.doors.envoy.exchange import Exchange, Terms
from coordinator.doors.envoy.following import Following
from coordinator.doors.envoy.messages import (
    Continue,
    Effect,
    Immediate,
    Note,
    Picked,
    Piece,
    Question,
    Refuse,
    Rejected,
)
from coordinator.refusal import BodyTimeout, DecisionTimeout, Fault, Refusal
from lineside import logs

log = logs.get("coordinator.doors.envoy.door")

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class Desk(Protocol):
    """Who decides one caller's requests, and hears what became of them."""

    async def ask(self, question: Question) -> Picked | Rejected:
        """Decide a request. What was taken for it is given back if this is cancelled."""
        ...

    def refuse(self, refusal: Refusal, exchange: Exchange) -> Rejected:
        """Put a refusal into the shape of the client's API."""
        ...

    def follow(self, picked: Picked) -> Following:
        """Return what reads the answer to a request that was sent on."""
        ...

    def note(self, following: Following, note: Note) -> None:
        """Hear what became of it."""
        ...


Admit: TypeAlias = Callable[[Context], Awaitable[Desk]]
"""Finds a caller's desk. Ends the call of one who may not ask."""


class Door:
    """The service, and how many streams it has open."""

    def __init__(self, admit: Admit, terms: Terms, receive_s: float, decide_s: float) -> None:
        """`receive_s`: for a request's body; `decide_s`: for the decision about it."""
        self._admit = admit
        self._terms = terms
        self._receive_s = receive_s
        self._decide_s = decide_s
        self.calls = 0
        """Requests that were begun and not decided, or whose answers are followed."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server is to be given. Messages stay bytes until here."""
        process: grpc.RpcMethodHandler[bytes, bytes]
        process = grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.method_handlers_generic_handler(contract.SERVICE, {"Process": process})

    async def _process(self, messages: AsyncIterator[bytes], context: Context) -> None:
        desk = await self._admit(context)
        call = _Call(desk, Exchange(self._terms, desk.follow), context)
        self.calls += 1
        try:
            await self._serve(call, messages)
        except Exception:  # noqa: BLE001  the one place: a fault ends its request only
            log.fault("external processing failed", request_id=call.id)
            if call.exchange.is_decided:  # a clean end would pass a broken answer off as whole
                await context.abort(grpc.StatusCode.INTERNAL, "an internal error")
            await call.refuse(Fault(call.id))
        finally:
            self.calls -= 1
            call.close()

    async def _serve(self, call: "_Call", messages: AsyncIterator[bytes]) -> None:
        try:
            async with asyncio.timeout(self._receive_s) as limit:
                async for message in messages:
                    said = wire.decode(message)
                    if said is not None:
                        await call.do(call.exchange.take(said), limit, self._decide_s)
                    if call.exchange.is_done:
                        return
        except TimeoutError:
            if not limit.expired():
                raise
            is_asked = call.exchange.is_asked
            await call.refuse(
                DecisionTimeout(self._decide_s) if is_asked else BodyTimeout(self._receive_s)
            )


class _Call:
    """One stream, between its exchange, the desk, and the gateway."""

    def __init__(self, desk: Desk, exchange: Exchange, context: Context) -> None:
        self.exchange = exchange
        self._desk = desk
        self._context = context

    @property
    def id(self) -> str:
        """What the gateway and its log call the request."""
        return contract.value(self.exchange.headers, "x-request-id") or "unknown"

    async def do(self, effects: Sequence[Effect], limit: asyncio.Timeout, decide_s: float) -> None:
        """Do what follows from a message. `limit` ends what the request may still take."""
        for effect in effects:
            match effect:
                case Question():
                    limit.reschedule(asyncio.get_running_loop().time() + decide_s)
                    answer = await self._desk.ask(effect)
                    limit.reschedule(None)
                    await self._tell(answer)
                case Refuse(refusal):
                    limit.reschedule(None)
                    await self.refuse(refusal)
        await self._pass_on(effects)
        if self.exchange.is_decided:
            limit.reschedule(None)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer the client from here, where it has no answer yet."""
        if not self.exchange.is_decided:
            await self._tell(self._desk.refuse(refusal, self.exchange))

    async def _tell(self, answer: Picked | Rejected) -> None:
        if isinstance(answer, Picked):
            effects = self.exchange.picked(answer)
        else:
            effects = self.exchange.rejected(answer)
        await self._pass_on(effects)

    async def _pass_on(self, effects: Sequence[Effect]) -> None:
        """Note first: a gateway that has got its last answer may cancel the stream at once."""
        for effect in effects:
            if not isinstance(effect, Continue | Piece | Immediate | Question | Refuse):
                self._note(effect)
        for effect in effects:
            if isinstance(effect, Continue | Piece | Immediate):
                await self._context.write(wire.encode(effect))

    def close(self) -> None:
        """Say what became of a request whose stream has ended. Waits for nothing."""
        for note in self.exchange.left():
            self._note(note)

    def _note(self, note: Note) -> None:
        if self.exchange.following is not None:
            self._desk.note(self.exchange.following, note)
