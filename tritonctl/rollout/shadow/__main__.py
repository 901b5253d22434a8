# SPDX-License-Identifier: Apache-2.0
"""The shadower's process: `python -m tritonctl.rollout.shadow CONFIG.json`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from tritonctl.errors import HostError, TritonctlError
from tritonctl.host.files import write_atomically
from tritonctl.rollout.shadow.answers import Version
from tritonctl.rollout.shadow.config import ShadowConfig
from tritonctl.rollout.shadow.found import COUNTS, Counts
from tritonctl.rollout.shadow.listening import Listener
from tritonctl.rollout.shadow.room import Room
from tritonctl.rollout.shadow.shadower import Shadower

_LOG = logging.getLogger("tritonctl.shadow")
_COUNT_SECONDS = 2.0


async def shadow(config: ShadowConfig, end: asyncio.Event) -> None:
    """Take copies and ask, until `end`. Raises HostError where no socket can be made."""
    stable = Version(config.stable.endpoint, config.seconds)
    candidate = Version(config.candidate.endpoint, config.seconds)
    rooms = Room(config.stable.metrics_url), Room(config.candidate.metrics_url)
    shadower = Shadower(config, stable=stable, candidate=candidate, rooms=rooms)
    listener = Listener(config.socket, shadower.take)
    await listener.start()
    tasks = [
        asyncio.create_task(shadower.run()),
        asyncio.create_task(_count(shadower.counts, config.folder)),
    ]
    _LOG.info("takes copies at %s", config.socket)
    try:
        await end.wait()
    finally:
        await listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _write(shadower.counts, config.folder)
        await stable.close()
        await candidate.close()


async def _count(counts: Counts, folder: Path) -> None:
    while True:
        _write(counts, folder)
        await asyncio.sleep(_COUNT_SECONDS)


def _write(counts: Counts, folder: Path) -> None:
    try:
        write_atomically(folder / COUNTS, json.dumps(asdict(counts)))
    except HostError as error:
        _LOG.warning("%s", error.problem)


async def _until_told(config: ShadowConfig) -> None:
    end = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, end.set)
    await shadow(config, end)


def main(file: Path) -> int:
    """Until SIGTERM; 0 then."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(_until_told(ShadowConfig.read(file)))
    except TritonctlError as error:
        _LOG.error("%s: %s", error.problem, error.remedy)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
