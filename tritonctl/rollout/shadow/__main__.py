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
from tritonctl.rollout.shadow.answers import VersionClient
from tritonctl.rollout.shadow.capacity_probe import CapacityProbe
from tritonctl.rollout.shadow.comparison_log import COUNTS, ShadowCounts
from tritonctl.rollout.shadow.config import ShadowConfig
from tritonctl.rollout.shadow.listening import CopyListener
from tritonctl.rollout.shadow.shadower import Shadower

_LOG = logging.getLogger("tritonctl.shadow")
_COUNT_SECONDS = 2.0


async def run_shadower(config: ShadowConfig, stop: asyncio.Event) -> None:
    """Process copies until `stop` is set. Raises HostError if the socket cannot be created."""
    stable = VersionClient(config.stable.endpoint, config.seconds)
    candidate = VersionClient(config.candidate.endpoint, config.seconds)
    probes = CapacityProbe(config.stable.metrics_url), CapacityProbe(config.candidate.metrics_url)
    shadower = Shadower(config, stable=stable, candidate=candidate, probes=probes)
    listener = CopyListener(config.socket, shadower.enqueue)
    await listener.start()
    tasks = [
        asyncio.create_task(shadower.run()),
        asyncio.create_task(_write_counts_periodically(shadower.counts, config.folder)),
    ]
    _LOG.info("takes copies at %s", config.socket)
    try:
        await stop.wait()
    finally:
        await listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _write_counts(shadower.counts, config.folder)
        await stable.close()
        await candidate.close()


async def _write_counts_periodically(counts: ShadowCounts, folder: Path) -> None:
    while True:
        _write_counts(counts, folder)
        await asyncio.sleep(_COUNT_SECONDS)


def _write_counts(counts: ShadowCounts, folder: Path) -> None:
    try:
        write_atomically(folder / COUNTS, json.dumps(asdict(counts)))
    except HostError as error:
        _LOG.warning("%s", error.problem)


async def _run_until_signal(config: ShadowConfig) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    await run_shadower(config, stop)


def main(file: Path) -> int:
    """Run until SIGTERM; return the exit code."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(_run_until_signal(ShadowConfig.read(file)))
    except TritonctlError as error:
        _LOG.error("%s: %s", error.problem, error.remedy)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
