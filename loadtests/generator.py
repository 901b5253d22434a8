# SPDX-License-Identifier: Apache-2.0
"""Carries out a load plan: records in a folder, progress lines on standard output.

    python generator.py --plan PLAN.json --output FOLDER [--worker 0 --workers 1]

Exit codes: 0 carried out, 2 plan refused, 3 endpoint or model not there; with 2 and 3 a JSON line
{"problem", "remedy"} on standard error. README.md has the formats.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadlib.asyncio_engine import Engine
from loadlib.clock import US, Clock
from loadlib.heartbeat import Heartbeat
from loadlib.plan import Plan, read_plan
from loadlib.progress import Meter
from loadlib.records import Recorder, RecordFile
from loadlib.refusal import Refusal
from loadlib.share import FULL, INTERRUPTED, Share
from loadlib.transport import Transport
from loadlib.workload import Workload

_INTERRUPTED = 130


def main() -> int:
    """Run; the exit code."""
    arguments = _arguments()
    try:
        plan = read_plan(arguments.plan)
        workload = Workload(plan)
        _check_writable(arguments.output)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_carry_out(plan, workload, arguments))
    except Refusal as refusal:
        _complain(refusal.to_record())
        return refusal.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED  # before anything was sent; later it ends as planned
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plan", type=Path, required=True, help="the load plan, JSON")
    parser.add_argument("--output", type=Path, required=True, help="folder for the records")
    parser.add_argument("--worker", type=int, default=0, help="which of the workers this is")
    parser.add_argument("--workers", type=int, default=1, help="how many share the plan")
    arguments = parser.parse_args()
    if not 0 <= arguments.worker < arguments.workers:
        parser.error(f"--worker {arguments.worker} is none of {arguments.workers} workers")
    return arguments


def _check_writable(folder: Path) -> None:
    """Refusal where no records could be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot make the folder {folder}: {error.strerror}",
            remedy="name another --output, or make room",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refusal(f"cannot write into {folder}", remedy="name another --output")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: 10 to 15 % less CPU per request."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop  # type: ignore[no-any-return]


def _transport(plan: Plan) -> Transport:
    if plan.protocol == "http":
        from loadlib.asyncio_http import HttpTransport

        return HttpTransport(plan)
    from loadlib.asyncio_grpc import GrpcTransport

    return GrpcTransport(plan)


async def _carry_out(plan: Plan, workload: Workload, arguments: argparse.Namespace) -> None:
    worker = arguments.worker
    transport = _transport(plan)
    try:
        await transport.prepare()
        share = Share.of(workload, worker, arguments.workers)
        file = RecordFile(arguments.output / f"records-{worker}.jsonl")
        meter = Meter(worker, share.due if share.planned else None)
        recorder = Recorder(file, meter, worker=worker, text=plan.kind == "text")
        clock = Clock(plan.started_at)
        engine = Engine(plan, share, transport, recorder, clock)
        _listen(engine)
        # The schedule lives as long as the run: collections need not look at it again.
        gc.collect()
        gc.freeze()
        reports = asyncio.ensure_future(_report(engine, meter, file, clock))
        try:
            with _beating(meter, clock):
                await engine.run()
        finally:
            reports.cancel()
            file.close()
        with contextlib.suppress(asyncio.CancelledError):
            await reports
        if file.failure:
            engine.reason = FULL
        last = meter.last_line(clock.now_us(), engine.reason, engine.unsent)
        _say(last | {"lost": file.lost})
    finally:
        await transport.close()


@contextlib.contextmanager
def _beating(meter: Meter, clock: Clock) -> Iterator[None]:
    """Watches how late this loop is."""
    heart, loop = Heartbeat(meter, clock), asyncio.get_running_loop()
    loop.add_reader(heart.fd, heart.beat)
    try:
        yield
    finally:
        loop.remove_reader(heart.fd)
        heart.close()


def _listen(engine: Engine) -> None:
    """Once: finish what is in flight. Twice: abandon it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, engine.stop, INTERRUPTED)


async def _report(engine: Engine, meter: Meter, file: RecordFile, clock: Clock) -> None:
    """Each second: a line, and the records so far."""
    second = 1
    while True:
        await asyncio.sleep(second - clock.now_us() / US)
        second += 1
        file.flush()
        if file.failure and not engine.stopped:
            _complain({"problem": f"cannot write the records: {file.failure}"})
            engine.stop(FULL)
        await asyncio.sleep(0)  # requests that are due go between the two
        try:
            _say(meter.line(clock.now_us()))
        except BrokenPipeError:
            # Nobody listens any more: whoever started this run is gone.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            engine.stop(INTERRUPTED)


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _complain(record: dict[str, Any]) -> None:
    """On standard error, which may be a file on the disk that is full: no reason to fail, too."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), (json.dumps(record, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
