"""From a parsed chat or completion to the core's requests, and from their tokens to the reply.

Decides beforehand what each request will answer. No sockets, no waiting.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulate import replies, requests
from simulate.config import Config
from simulate.content import Lora, Scope
from simulate.core import Request
from simulate.driver import Token
from simulate.replies import Choice, Envelope, JsonObject, Usage
from simulate.requests import Chat, Completion, Refused, StreamOptions, Tokenize
from simulate.tokens import BadTemplate, Storyteller, Tokenizer

REPORTS_HITS_SINCE = (0, 26)
"""The first release that knows `kv_cache_report_mode`; others ignore it."""

COMPLETION_MAX_TOKENS = 16
"""Of a completion that sets none; a chat's is a setting."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat or completion that was accepted: its requests, `n` for each prompt in order."""

    body: Chat | Completion
    envelope: Envelope
    prompts: list[list[int]]
    requests: list[Request]
    block_size: int
    pieces: Mapping[int, str]
    with_details: bool = True
    """Say how much of the prompt was cached."""

    @property
    def chat(self) -> bool:
        return isinstance(self.body, Chat)

    @property
    def stream_options(self) -> StreamOptions:
        return self.body.stream_options or StreamOptions()

    @property
    def stream(self) -> bool:
        return bool(self.body.stream)

    def usage(self) -> Usage:
        """Return the counts so far; a chat also says how many tokens it added to the cache."""
        prompt = sum(map(len, self.prompts))
        cached = sum(request.cached_tokens or 0 for request in self.requests)
        return Usage(
            prompt=prompt,
            completion=sum(request.generated for request in self.requests),
            cached=cached,
            created=max(0, prompt // self.block_size * self.block_size - cached)
            if self.chat
            else None,
            with_details=self.with_details,
        )

    def rendered(self) -> JsonObject:
        """Return what would be run: token ids in place of messages."""
        (prompt,), (request, *_) = self.prompts, self.requests
        return {
            "request_id": self.envelope.id,
            "token_ids": prompt,
            "sampling_params": {"max_tokens": len(request.answer), "n": self.body.choices},
            "model": self.envelope.model,
            "stream": bool(self.body.stream),
            "cache_salt": self.body.cache_salt,
        }

    def reply(self, answers: Sequence[list[int]]) -> JsonObject:
        """Return the reply in one piece."""
        told = self.body.return_token_ids
        choices = [
            Choice(
                index=index,
                text="".join(map(self.pieces.__getitem__, answer)),
                finish_reason=request.finish_reason,
                token_ids=answer if told else None,
                prompt_token_ids=list(request.prompt) if told else None,
            )
            for index, (request, answer) in enumerate(zip(self.requests, answers, strict=True))
        ]
        make = self.envelope.chat if self.chat else self.envelope.completion
        return make(choices, self.usage())

    def openings(self) -> list[JsonObject]:
        """Return the chunks that a stream begins with."""
        if not self.chat:
            return []
        chunks = [self.envelope.chat_opening(index) for index in range(len(self.requests))]
        if self.stream_options.continuous:
            nothing_yet = Usage(sum(map(len, self.prompts)), 0, 0, None)
            chunks = [{**chunk, "usage": nothing_yet.running()} for chunk in chunks]
        return chunks

    def chunks(self, tokens: Sequence[Token], *, last: bool) -> Iterator[JsonObject]:
        """Yield a chunk for each choice that has something new; `last`: no more will come."""
        make = self.envelope.chat_chunk if self.chat else self.envelope.completion_chunk
        for index in dict.fromkeys(token.choice for token in tokens):
            mine = [token for token in tokens if token.choice == index]
            text = "".join(self.pieces[token.token] for token in mine)
            reason = self.requests[index].finish_reason if mine[-1].done else None
            chunk = make(index, text, reason)
            if self.stream_options.continuous:
                chunk["usage"] = self.usage().running()
            if last and index == tokens[-1].choice and not self.stream_options.include_usage:
                chunk["system_fingerprint"] = replies.FINGERPRINT
            yield chunk

    def opening(self) -> list[bytes]:
        """Return the events that a stream begins with."""
        return [replies.sse(chunk) for chunk in self.openings()]

    def events(self, tokens: Sequence[Token], *, last: bool) -> list[bytes]:
        """Return the events of some tokens."""
        return [replies.sse(chunk) for chunk in self.chunks(tokens, last=last)]

    def ending(self) -> bytes:
        """Return what a stream ends with."""
        closing = self.closing()
        return (replies.sse(closing) if closing else b"") + replies.DONE

    def closing(self) -> JsonObject | None:
        """Return the chunk with the usage, if it was asked for."""
        if not self.stream_options.include_usage:
            return None
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self.envelope.usage_chunk(kind, self.usage())


class Generation:
    """Accepts or refuses requests for one engine."""

    def __init__(self, config: Config, tokenizer: Tokenizer, storyteller: Storyteller) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._storyteller = storyteller
        self._names = config.names()
        self._loras = {name: Lora(i, name) for i, name in enumerate(config.lora, start=1)}
        self.served = (*self._names, *self._loras)
        self.leads = not tokenizer.takes_inline_system()
        """Of messages, the system's are put in front."""

    def chat(self, body: Chat, headers: Mapping[str, str]) -> Asked:
        """Accept a chat. Raises `Refused`."""
        requests.check_model(body.model, self.served)
        requests.check_sampling(body)
        requests.check_text_only(body.messages, self._names[0])
        limit = (
            body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        )
        requests.check_max_tokens(limit, self._config.max_model_len)
        prompt = self._tokenizer.encode(self.rendered(body))
        requests.check_length(len(prompt), limit, self._config.max_model_len, from_text=True)
        return self._asked(body, headers, [prompt], limit or self._config.default_max_tokens)

    def completion(self, body: Completion, headers: Mapping[str, str]) -> Asked:
        """Accept a completion. Raises `Refused`."""
        requests.check_model(body.model, self.served)
        requests.check_sampling(body)
        longest = self._config.max_model_len
        limit = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        requests.check_max_tokens(limit, longest)
        prompts = []
        for given in body.prompts():
            text = isinstance(given, str)
            prompt = self._tokenizer.encode(given) if isinstance(given, str) else given
            requests.check_length(len(prompt), limit, longest, from_text=text)
            requests.check_ids(prompt, self._tokenizer.vocabulary_size)
            prompts.append(prompt)
        return self._asked(body, headers, prompts, limit)

    def counted(self, body: Chat) -> int:
        """Return the tokens of a chat. Raises `Refused`."""
        requests.check_model(body.model, self.served)
        return len(self._tokenizer.encode(self.rendered(body)))

    def rendered(self, body: Chat | Tokenize) -> str:
        """Return a chat's prompt as text. Raises `Refused`."""
        try:
            return self._tokenizer.render(
                body.messages or [],
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                options=body.variables(),
            )
        except BadTemplate as error:
            raise Refused(400, str(error)) from error

    def _asked(
        self,
        body: Chat | Completion,
        headers: Mapping[str, str],
        prompts: list[list[int]],
        limit: int,
    ) -> Asked:
        kind = "chatcmpl" if isinstance(body, Chat) else "cmpl"
        name = headers.get("X-Request-Id") or uuid.uuid4().hex[:16]
        session = body.session(headers.get("X-Session-ID"))
        return Asked(
            body,
            Envelope(f"{kind}-{name}", int(time.time()), body.model or self._names[0]),
            prompts,
            [
                self._request(body, prompt, variant, limit, session)
                for prompt in prompts
                for variant in range(body.choices)
            ],
            self._config.block_size,
            self._storyteller.pieces,
            with_details=not self._config.no_prompt_tokens_details,
        )

    def _request(
        self,
        body: Chat | Completion,
        prompt: list[int],
        variant: int,
        limit: int,
        session: str | None,
    ) -> Request:
        """Decide an answer: of its own length, unless the limit comes first or must be met."""
        limit = min(limit, self._config.max_model_len - len(prompt))
        usual = self._config.answer_tokens
        own = self._storyteller.length(prompt, variant, usual // 2, usual + usual // 2)
        stops = not body.ignore_eos and own < limit
        count = own if stops else limit
        chat = isinstance(body, Chat)
        return Request(
            prompt=prompt,
            answer=self._storyteller.answer(prompt, variant, count, opens=chat, ends=stops),
            finish_reason="stop" if stops else "length",
            scope=Scope(self._loras.get(body.model or ""), body.cache_salt),
            session_id=session,
            report_hits=body.report_hits and self._config.version >= REPORTS_HITS_SINCE,
        )
