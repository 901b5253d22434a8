# SPDX-License-Identifier: Apache-2.0
"""Carry out a load plan: records in a folder, progress lines on standard output.

    python generator.py --plan PLAN.json --output FOLDER [--worker 0 --workers 1]
    python generator.py --driven [--worker 0 --workers 1]     for a process such as Locust

Exit codes: 0 carried out, 2 plan refused, 3 endpoint or model not usable; with 2 and 3 a JSON line
{"problem", "remedy"} on standard error. Formats: README.md; --driven: loadlib/driven_outlet.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from loadlib.clock import US, Clock
from loadlib.driven_outlet import DrivenOutlet
from loadlib.engine import LoadEngine
from loadlib.heartbeat import Heartbeat
from loadlib.json_lines import print_error
from loadlib.plan import read_plan
from loadlib.plan_types import GeneratorPlan
from loadlib.progress import Meter
from loadlib.records import Recorder
from loadlib.refusal import RunRefusedError
from loadlib.standalone_outlet import StandaloneOutlet
from loadlib.transport import create_transport
from loadlib.worker_share import DISK_FULL, WorkerShare
from loadlib.workload import Workload

_INTERRUPTED = 130


def main() -> int:
    """Run the plan and return the exit code."""
    arguments = _arguments()
    try:
        plan = read_plan(arguments.plan)
        workload = Workload(plan)
        outlet = (
            DrivenOutlet()
            if arguments.driven
            else StandaloneOutlet(arguments.output, arguments.worker, plan.started_at)
        )
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_carry_out(plan, workload, outlet, arguments.worker, arguments.workers))
    except RunRefusedError as refusal:
        print_error(refusal.to_record())
        return refusal.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED  # before anything was sent; a later interrupt returns 0
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plan", type=Path, help="the load plan, JSON")
    parser.add_argument("--output", type=Path, help="folder for the records")
    parser.add_argument("--driven", action="store_true", help="use standard input and output only")
    parser.add_argument("--worker", type=int, default=0, help="which of the workers this is")
    parser.add_argument("--workers", type=int, default=1, help="how many share the plan")
    arguments = parser.parse_args()
    if not 0 <= arguments.worker < arguments.workers:
        parser.error(f"--worker {arguments.worker}: give 0 to {arguments.workers - 1}")
    paths = (arguments.plan, arguments.output)
    if any(paths) if arguments.driven else not all(paths):
        parser.error("give --plan and --output, or --driven alone")
    return arguments


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if installed: 10 to 15 % less CPU per request."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


async def _carry_out(
    plan: GeneratorPlan,
    workload: Workload,
    outlet: StandaloneOutlet | DrivenOutlet,
    worker: int,
    workers: int,
) -> None:
    transport = create_transport(plan)
    try:
        await transport.prepare(workload.tensors)
        share = WorkerShare.of_worker(workload, worker, workers)
        # The schedule lives as long as the run: exclude it from collections.
        gc.collect()
        gc.freeze()
        clock = Clock(await outlet.wait_for_start())
        meter = Meter(worker, share.due_count if share.planned else None)
        recorder = Recorder(outlet.records, meter, worker=worker, text=plan.kind == "text")
        engine = LoadEngine(plan, share, transport, recorder, clock)
        outlet.attach(engine)
        reports = asyncio.ensure_future(_report(outlet, meter, clock))
        try:
            with _heartbeat(meter, clock):
                await engine.run()
        finally:
            reports.cancel()
            outlet.records.close()
        with contextlib.suppress(asyncio.CancelledError):
            await reports
        if outlet.records.failure:
            engine.reason = DISK_FULL
        last = meter.last_line(clock.now_us(), engine.reason, engine.unsent)
        outlet.write_progress(last | {"lost": outlet.records.lost})
    finally:
        await transport.close()
        await outlet.close()


@contextlib.contextmanager
def _heartbeat(meter: Meter, clock: Clock) -> Iterator[None]:
    """Measure how late this loop wakes."""
    heart, loop = Heartbeat(meter, clock), asyncio.get_running_loop()
    loop.add_reader(heart.fd, heart.beat)
    try:
        yield
    finally:
        loop.remove_reader(heart.fd)
        heart.close()


async def _report(outlet: StandaloneOutlet | DrivenOutlet, meter: Meter, clock: Clock) -> None:
    """Flush the records and write a progress line each second."""
    second = 1
    while True:
        await asyncio.sleep(second - clock.now_us() / US)
        second += 1
        outlet.flush()
        await asyncio.sleep(0)  # let due requests go first
        outlet.write_progress(meter.line(clock.now_us()))


if __name__ == "__main__":
    sys.exit(main())
