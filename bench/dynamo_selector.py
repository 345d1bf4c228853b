"""The least that a gateway can be around Dynamo's selector: aiohttp, a tokenizer, `select`.

    python dynamo_selector.py MODEL TOKENIZER_FILE BLOCK_SIZE URL=EVENTS [URL=EVENTS ...]

Run by the interpreter of its own environment; imports nothing of ours. Books each request and frees
it, as a gateway must for the selector to know loads.
"""

import asyncio
import json
import sys
from typing import Any

import aiohttp
import uvloop
from aiohttp import web
from dynamo._core import SelectionService
from tokenizers import Tokenizer

PATH = "/v1/chat/completions"


async def main(model: str, file: str, block_size: int, engines: list[str]) -> None:
    """Serve until killed, on any free port, which is printed."""
    selector, tokenizer = SelectionService(), Tokenizer.from_file(file)
    for number, engine in enumerate(engines):
        url, _, events = engine.partition("=")
        worker = {"worker_id": number, "model_name": model, "block_size": block_size}
        worker |= {"endpoint": url, "kv_events_endpoints": {0: events}}
        await selector.upsert_worker(worker)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            turns = json.loads(raw)["messages"]
            text = "".join(f"<|im_start|>{t['role']}\n{t['content']}<|im_end|>\n" for t in turns)
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            asked = {"model_name": model, "token_ids": tokens}
            chosen: Any = await selector.select_and_reserve(asked)
            try:
                return await _pass_on(session, request, chosen["endpoint"] + PATH, raw)
            finally:
                await selector.free_reservation(chosen["selection_id"])

        app = web.Application(client_max_size=2**24)
        app.router.add_post(PATH, relay)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        listening = {"http": f"127.0.0.1:{runner.addresses[0][1]}"}
        print(json.dumps({"listening": listening}), flush=True)
        await asyncio.Event().wait()


async def _pass_on(
    session: aiohttp.ClientSession, request: web.Request, url: str, raw: bytes
) -> web.StreamResponse:
    kind = {"content-type": "application/json"}
    async with session.post(url, data=raw, headers=kind) as answer:
        if answer.content_type != "text/event-stream":
            return web.Response(body=await answer.read(), content_type=answer.content_type)
        response = web.StreamResponse(headers={"content-type": answer.content_type})
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
