"""Workers of a Dynamo frontend that pass everything on to vLLM's HTTP API, run by its interpreter.

    python dynamo_worker.py MODEL FOLDER BLOCKS BLOCK_SIZE URL=EVENTS [URL=EVENTS ...]

One worker for each engine, each with a runtime of its own, as Dynamo's own mocker does it. The
frontend renders and tokenises and gets the number and times of the engine's tokens back; what they
say is left out. Imports nothing of ours.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import uvloop
from dynamo.common.utils.runtime import create_runtime
from dynamo.llm import (
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)

ENDPOINT = "bench.backend.generate"
MAX_NUM_SEQS = 32
MAX_NUM_BATCHED_TOKENS = 8192


async def main(model: str, folder: str, blocks: int, block_size: int, engines: list[str]) -> None:
    """Serve until killed."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        serving = []
        kept = []  # publishers and runtimes live as long as somebody holds them
        for engine in engines:
            url, _, events = engine.partition("=")
            runtime, _ = create_runtime("file", "tcp", "zmq")
            endpoint = runtime.endpoint(ENDPOINT)
            publisher = KvEventPublisher(
                endpoint=endpoint,
                kv_block_size=block_size,
                zmq_endpoint=events,
                zmq_topic="",
                enable_local_indexer=True,
            )
            kept.append((runtime, publisher))
            handler = partial(generate, session, url, model)
            serving.append(asyncio.ensure_future(endpoint.serve_endpoint(_handler(handler))))
            await register_model(
                ModelInput.Tokens,
                ModelType.Chat | ModelType.Completions,
                endpoint,
                folder,
                model,
                worker_type=WorkerType.Aggregated,
                kv_cache_block_size=block_size,
                runtime_config=_runtime_config(blocks),
            )
        print(json.dumps({"workers": len(kept)}), flush=True)
        await asyncio.gather(*serving)


def _runtime_config(blocks: int) -> ModelRuntimeConfig:
    config = ModelRuntimeConfig()
    config.total_kv_blocks = blocks
    config.max_num_seqs = MAX_NUM_SEQS
    config.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    config.enable_local_indexer = True
    config.kv_event_publishing_enabled = True
    return config


def _handler(serve: Any) -> Any:
    """Return a plain async generator function: the binding looks at its signature."""

    async def handle(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async for chunk in serve(request):
            yield chunk

    return handle


async def generate(
    session: aiohttp.ClientSession, url: str, model: str, request: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield one token for each that the engine sends."""
    prompt = request["token_ids"]
    limit = request["stop_conditions"]["max_tokens"]
    body = {"model": model, "prompt": prompt, "max_tokens": limit}
    body |= {"temperature": 0, "ignore_eos": True, "stream": True}
    token = prompt[len(prompt) // 2]
    left = limit
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            came = min(chunk.count(b'"text":'), left)
            left -= came
            if came and left:
                yield {"token_ids": [token] * came}
            elif came:
                yield {"token_ids": [token] * came, "finish_reason": "length"}
    if left:
        yield {"token_ids": [token] * left, "finish_reason": "length"}


if __name__ == "__main__":
    model_name, model_folder, pool, size, *served = sys.argv[1:]
    uvloop.run(main(model_name, model_folder, int(pool), int(size), served))
