"""What a simulated engine answers: JSON objects and stream chunks, as vLLM 0.32 does. Pure.

Fields that a text-only engine without tools always leaves empty are there all the same: clients
see them on the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from simulate.requests import Refused

FINGERPRINT = "vllm-0.32.0-490335f8"
VERSION = "0.32.0"
DONE = b"data: [DONE]\n\n"

JsonObject = dict[str, Any]
encode = msgspec.json.encode


def sse(chunk: JsonObject) -> bytes:
    """Return one server-sent event."""
    return b"data: " + encode(chunk) + b"\n\n"


def error(refused: Refused) -> JsonObject:
    """Return the error object."""
    told = {"message": refused.message, "type": refused.type}
    return {"error": {**told, "param": refused.param, "code": refused.status}}


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one exchange. `created` is said in chats only."""

    prompt: int
    completion: int
    cached: int
    created: int | None
    with_details: bool = True
    """Without: as of an engine that was started without `--enable-prompt-tokens-details`."""

    def counts(self) -> JsonObject:
        """Return the counts alone."""
        total = self.prompt + self.completion
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": total,
            "completion_tokens": self.completion,
        }

    def whole(self) -> JsonObject:
        """Return the usage of an answer in one piece."""
        details = {"cached_tokens": self.cached, "created_cache_tokens": self.created}
        return {
            **self.counts(),
            "prompt_tokens_details": {**details, "multimodal_tokens": None}
            if self.with_details
            else None,
            "completion_tokens_details": None,
        }

    def streamed(self) -> JsonObject:
        """Return the usage of a stream's last chunk, which leaves out what is not known."""
        if not self.with_details:
            return self.counts()
        details = {"cached_tokens": self.cached}
        if self.created is not None:
            details["created_cache_tokens"] = self.created
        return {**self.counts(), "prompt_tokens_details": details}

    def running(self) -> JsonObject:
        """Return the usage inside a stream."""
        return {**self.counts(), "completion_tokens_details": None}


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer. Token ids are `None` unless asked for."""

    index: int
    text: str
    finish_reason: str
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one exchange starts with."""

    id: str
    created: int
    model: str

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def chat(self, choices: Sequence[Choice], usage: Usage) -> JsonObject:
        """Return a chat's answer in one piece."""
        return {
            **self._head("chat.completion"),
            "choices": [_chat_choice(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage.whole(),
            "prompt_logprobs": None,
            "prompt_token_ids": choices[0].prompt_token_ids,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def completion(self, choices: Sequence[Choice], usage: Usage) -> JsonObject:
        """Return a completion in one piece."""
        return {
            **self._head("text_completion"),
            "choices": [_completion_choice(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage.whole(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def chat_opening(self, index: int) -> JsonObject:
        """Return the chunk that opens a choice of a chat stream."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {
            **self._head("chat.completion.chunk"),
            "choices": [choice],
            "prompt_token_ids": None,
            "prompt_text": None,
        }

    def chat_chunk(self, index: int, text: str, finish_reason: str | None) -> JsonObject:
        """Return a chunk with text; with the finish reason it is the choice's last."""
        choice: JsonObject = {"index": index, "delta": {"content": text}, "logprobs": None}
        choice["finish_reason"] = finish_reason
        if finish_reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def completion_chunk(self, index: int, text: str, finish_reason: str | None) -> JsonObject:
        """Return a chunk with text; with the finish reason it is the choice's last."""
        choice = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        return {**self._head("text_completion"), "choices": [choice]}

    def usage_chunk(self, kind: str, usage: Usage) -> JsonObject:
        """Return the chunk after the last choice, with no choices of its own."""
        told = {"choices": [], "usage": usage.streamed(), "system_fingerprint": FINGERPRINT}
        return {**self._head(kind), **told}


def _chat_choice(choice: Choice) -> JsonObject:
    message = {
        "role": "assistant",
        "content": choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": None,
        "token_ids": choice.token_ids,
        "routed_experts": None,
    }


def _completion_choice(choice: Choice) -> JsonObject:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": None,
        "token_ids": choice.token_ids,
        "prompt_logprobs": None,
        "prompt_token_ids": choice.prompt_token_ids,
        "routed_experts": None,
    }


def model_card(name: str, created: int, root: str, parent: str | None, length: int) -> JsonObject:
    """Return one entry of `/v1/models`; an adapter has a parent and no length of its own."""
    permission = {
        "id": f"modelperm-{created:016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": None if parent else length,
        "permission": [permission],
    }
