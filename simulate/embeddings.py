"""`/v1/embeddings` of a pooling model as vLLM serves it. The numbers mean nothing.

A prompt is computed as any other, so that it queues, is cached and announced; the one token that
it generates for want of an own kind of request is not shown.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from simulate.core import Request
from simulate.generation import Asked
from simulate.replies import JsonObject
from simulate.requests import Completion

DIMENSIONS = 8
"""Of the tiny model's vectors."""


class Embedding(msgspec.Struct, kw_only=True):
    """What is to be embedded. Unknown fields are ignored."""

    input: str | list[Any]
    model: str | None = None
    dimensions: int | None = None
    cache_salt: str | None = None


def as_completion(body: Embedding) -> Completion:
    """Return a body as a completion of one token."""
    return Completion(model=body.model, prompt=body.input, max_tokens=1, cache_salt=body.cache_salt)


@dataclass(slots=True)
class EmbeddingAnswer:
    """Accepted texts."""

    body: Embedding
    asked: Asked

    @property
    def requests(self) -> list[Request]:
        return self.asked.requests

    def reply(self, _: Sequence[list[int]]) -> JsonObject:
        """Return the vectors: the same for the same text."""
        size = self.body.dimensions or DIMENSIONS
        vectors = [_vector(prompt, size) for prompt in self.asked.prompts]
        count = sum(map(len, self.asked.prompts))
        return {
            "id": f"embd-{uuid.uuid4().hex[:16]}",
            "object": "list",
            "created": self.asked.envelope.created,
            "model": self.asked.envelope.model,
            "data": [
                {"index": index, "object": "embedding", "embedding": vector}
                for index, vector in enumerate(vectors)
            ],
            "usage": {
                "prompt_tokens": count,
                "total_tokens": count,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
        }


def _vector(prompt: Sequence[int], size: int) -> list[float]:
    seeded = random.Random(str(prompt))
    return [round(seeded.uniform(-1, 1), 6) for _ in range(size)]
