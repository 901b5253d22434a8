# SPDX-License-Identifier: Apache-2.0
"""Many streams through the shipped speller, a third of them cancelled: does anything leak or break?

Usage: python benchmarks/soak/run.py [--streams 200000] [--minutes M] [--concurrency 32]

Exit code 1 if anything is wrong: a text that is not its reference, an error, a server that ended, a
slot, thread or shared-memory file too many at the end, or memory that grows by more than the bounds
below. Ctrl-C ends the run early, with the table and the verdict on what was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.engines.build.engine import build_engine
from tritonctl.errors import TritonctlError
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.state import Server, ServerFiles

from measure import SERVER, Sample, Sampler

MODEL = "speller"
PROMPTS = 200
SAMPLING = SamplingParameters(max_tokens=64)
CANCELLED_SHARE = 1 / 3
MOST_TOKENS_BEFORE_CANCEL = 12
STREAM_SECONDS = 120.0
SECONDS_BEFORE_FIRST = 0.008
DRAIN_SECONDS = 30.0
# Allocators fill first, and OpenVINO's shape caches for as long as new shapes come: growth is
# measured from this share of the run on, and judged if that is this many streams or more.
WARM_UP_SHARE = 0.4
WARM_UP_STREAMS = 50_000
# Flat means at most so many KiB more per 1,000 streams. tritonserver 2.51 may besides keep so many
# KiB of each stream that was left: the ensemble never forgets it (docs/decisions/7).
SERVER_BOUND = 500.0
KEPT_OF_A_LEFT_STREAM = 14.0
STUB_BOUND = 400.0


@dataclass
class Tally:
    """What happened to the streams."""

    began: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Run the soak; 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200_000, help="end after so many")
    parser.add_argument("--minutes", type=float, help="or after this time")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between samples")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked and cancelled")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        return asyncio.run(soak(*server, arguments))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, Path]]:
    """The shipped checkpoint in int8 on a real Triton, on free ports; and the server's log."""
    checkpoint = bundled.find("examples/number-speller/checkpoint")
    engine = {"builder": "openvino", "precision": "int8", "max_seq_len": 512}
    record = {
        "schema": "tritonctl/v1",
        "models": {MODEL: {"checkpoint": str(checkpoint), "engine": engine}},
        "server": {"grpc_port": 0, "http_port": 0, "metrics_port": 0},
    }
    (folder / "tritonctl.yaml").write_text(json.dumps(record), encoding="utf-8")
    project = load_project(folder / "tritonctl.yaml")
    build_engine(project, MODEL, Silent())
    state, _ = start(project, render(project, Silent()), Silent())
    try:
        yield state, ServerFiles.of(project).log
    finally:
        stop(project, Silent())


async def soak(state: Server, log: Path, arguments: argparse.Namespace) -> int:
    """Load the server, sample it, judge."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    sampler, tally = Sampler(state), Tally()
    async with AsyncTritonClient(state.grpc_url) as client:
        references = await answers(client)
        samples = [await sampler.sample(0, 0)]
        watch = asyncio.create_task(
            keep_sampling(sampler, samples, tally, arguments.every, stopping)
        )
        await load(client, references, tally, arguments, stopping)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
    await drain(sampler, DRAIN_SECONDS)
    samples.append(await sampler.sample(tally.began, tally.counts["cancelled"]))
    return report(samples, tally, log)


async def answers(client: AsyncTritonClient) -> dict[str, str]:
    """What each prompt is answered with, alone."""
    lines = bundled.find("examples/number-speller/prompts.jsonl").read_text(encoding="utf-8")
    prompts = [json.loads(line)["text_input"] for line in lines.splitlines()[:PROMPTS]]
    return {p: (await client.generate(MODEL, p, SAMPLING)).text for p in prompts}


async def load(
    client: AsyncTritonClient,
    references: dict[str, str],
    tally: Tally,
    arguments: argparse.Namespace,
    stopping: asyncio.Event,
) -> None:
    """Keep so many streams going until there were enough of them, or it is time."""
    # Not for secrets: the same seed asks for and cancels the same.
    draw = random.Random(arguments.seed)  # noqa: S311
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None

    async def work() -> None:
        while tally.began < arguments.streams and not stopping.is_set():
            if deadline is not None and time.monotonic() > deadline:
                return
            tally.began += 1
            prompt = draw.choice(list(references))
            leave = draw.random() < CANCELLED_SHARE
            tokens = draw.randint(0, MOST_TOKENS_BEFORE_CANCEL) if leave else None
            await one_stream(client, prompt, references[prompt], tokens, tally)
            if tally.counts["failed"] > arguments.concurrency:
                stopping.set()  # the server has gone: nothing more to learn

    await asyncio.gather(*(work() for _ in range(arguments.concurrency)))


async def one_stream(
    client: AsyncTritonClient, prompt: str, reference: str, leave_at: int | None, tally: Tally
) -> None:
    """Read a stream to its end, or leave it after so many tokens (0: before the first)."""
    stream = client.stream(MODEL, prompt, SAMPLING, timeout=STREAM_SECONDS)
    text = ""
    try:
        async with asyncio.timeout(SECONDS_BEFORE_FIRST if leave_at == 0 else None):
            async for chunk in stream:
                text += chunk.text
                if leave_at and chunk.num_output_tokens >= leave_at and not chunk.finish_reason:
                    tally.counts["cancelled"] += 1
                    return
    except TimeoutError:
        tally.counts["cancelled"] += 1
        return
    except TritonctlError as error:
        tally.counts["failed"] += 1
        tally.errors[str(error)[:120]] += 1
        return
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
    tally.counts["finished"] += 1
    if text != reference:
        tally.wrong.append(f"{prompt!r}: {text!r} instead of {reference!r}")


async def keep_sampling(
    sampler: Sampler, samples: list[Sample], tally: Tally, every: float, stopping: asyncio.Event
) -> None:
    """A sample and a line every so many seconds."""
    while not stopping.is_set():
        await asyncio.sleep(every)
        samples.append(await sampler.sample(tally.began, tally.counts["cancelled"]))
        print(samples[-1].line(), dict(tally.counts), file=sys.stderr, flush=True)


async def drain(sampler: Sampler, seconds: float) -> None:
    """Wait until the engine has no stream."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (await sampler.sample(0, 0)).active == 0:
            return
        await asyncio.sleep(0.5)


def report(samples: list[Sample], tally: Tally, log: Path) -> int:
    """Print the table and what is wrong."""
    print(Sample.head(samples[0]))
    for sample in samples:
        print(sample.line())
    print(f"\nstreams: {tally.began}, {dict(tally.counts)}")
    problems = judge(samples, tally) + crashes(log)
    for problem in problems:
        print(f"WRONG: {problem}")
    print("verdict:", "something is wrong" if problems else "nothing wrong was seen")
    return 1 if problems else 0


def judge(samples: list[Sample], tally: Tally) -> list[str]:
    """Everything that breaks a criterion."""
    first, last = samples[0], samples[-1]
    problems = [f"text of {text}" for text in tally.wrong[:5]]
    problems += [f"{count} streams: {error}" for error, count in tally.errors.most_common(5)]
    if last.rss.keys() != first.rss.keys():
        return [*problems, f"processes are now {sorted(last.rss)}, were {sorted(first.rss)}"]
    if last.active:
        problems.append(f"{last.active:.0f} streams hold a slot {DRAIN_SECONDS:.0f} s after all")
    # Threads come with the first load: compared is the end of the warm-up with the end.
    warm = warm_sample(samples)
    for name in last.threads:
        if last.threads[name] > warm.threads[name]:
            problems.append(f"{name} has {last.threads[name]} threads, had {warm.threads[name]}")
    if last.files > warm.files:
        problems.append(f"{last.files} files in /dev/shm, {warm.files} before")
    return problems + growth(warm, last)


def crashes(log: Path) -> list[str]:
    """What tritonserver wrote when it was killed by a signal of its own making."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"tritonserver ended: {line}" for line in lines if line.startswith("Signal (")]


def warm_sample(samples: list[Sample]) -> Sample:
    """The first one after the warm-up."""
    enough = WARM_UP_SHARE * samples[-1].streams
    return next(sample for sample in samples if sample.streams >= enough)


def growth(warm: Sample, last: Sample) -> list[str]:
    """Processes that grow too fast."""
    thousands = (last.streams - warm.streams) / 1000
    if not thousands:
        return []
    judged = warm.streams >= WARM_UP_STREAMS
    print("memory is judged:" if judged else "too short a run to judge memory:")
    kept = KEPT_OF_A_LEFT_STREAM * (last.cancelled - warm.cancelled) / thousands
    problems = []
    for name, rss in last.rss.items():
        rate = (rss - warm.rss[name]) / thousands
        bound = SERVER_BOUND + kept if name == SERVER else STUB_BOUND
        line = f"{name} grew by {rate:.0f} KiB per 1,000 streams after warm-up, bound {bound:.0f}"
        print(line)
        if judged and rate > bound:
            problems.append(line)
    return problems


if __name__ == "__main__":
    sys.exit(main())
