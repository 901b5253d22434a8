# SPDX-License-Identifier: Apache-2.0
"""Sends many streams through the shipped speller, cancels a third, looks for leaks and errors.

Usage: python benchmarks/soak/run.py [--streams 200000] [--minutes M] [--concurrency 32] [--fused]

tritonserver 2.51 crashes now and then where gRPC clients cancel (decision 7): it is started again,
and the answers go on. Crashes are counted; memory is judged within the server's longest life.

Exit code 1 for a wrong text, an error, a server that stays down, a slot, thread or shared-memory
file too many at the end, or memory that grows beyond the bounds below. Ctrl-C ends the run early,
with a table and a verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from bench import MODEL, PROMPTS, read_lines, running, speller, write_project
from measure import SERVER, Sample, Sampler
from tritonctl import AsyncTritonClient, SamplingParameters, TritonctlError
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles
from tritonctl.supervision.restarts import describe_crashes, read_restarts

MOST_PROMPTS = 200
SAMPLING = SamplingParameters(max_tokens=64)
CANCELLED_SHARE = 1 / 3
MOST_TOKENS_BEFORE_CANCEL = 12
STREAM_SECONDS = 120.0
SECONDS_BEFORE_FIRST = 0.008
DRAIN_SECONDS = 30.0
LAST_LINES = 40
# Allocators fill first, and OpenVINO's caches grow with each new shape: growth is measured after
# this share of the run, and judged if that share is this many streams or more.
WARM_UP_SHARE = 0.4
WARM_UP_STREAMS = 50_000
# The most KiB that may come per 1,000 streams; tritonserver 2.51 may also keep some of each stream
# that was left, because the ensemble never forgets it (decision 7).
SERVER_BOUND = 500.0
KEPT_OF_A_LEFT_STREAM = 8.0
STUB_BOUND = 400.0


@dataclass
class Tally:
    """Counts of the streams by outcome."""

    began: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    resumed: int = 0


def main() -> int:
    """Run the soak; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200_000, help="end after this many")
    parser.add_argument("--minutes", type=float, help="or after this time")
    parser.add_argument("--fused", action="store_true", help="with `serving.fused: true`")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between samples")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and cancels")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = write_project(Path(folder), speller(serving={"fused": arguments.fused}))
        with running(project) as state:
            return asyncio.run(soak(state, ServerFiles.of(project), arguments))


async def soak(state: EmbeddedServer, files: ServerFiles, arguments: argparse.Namespace) -> int:
    """Load the server, sample it, judge."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    sampler, tally = Sampler(state), Tally()
    async with AsyncTritonClient(state.grpc_url, resume_on=state.grpc_url) as client:
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
    return report(samples, tally, files)


async def answers(client: AsyncTritonClient) -> dict[str, str]:
    """The answer to each prompt when it is asked alone."""
    prompts = [line["text_input"] for line in read_lines(PROMPTS)[:MOST_PROMPTS]]
    return {p: (await client.generate(MODEL, p, SAMPLING)).text for p in prompts}


async def load(
    client: AsyncTritonClient,
    references: dict[str, str],
    tally: Tally,
    arguments: argparse.Namespace,
    stopping: asyncio.Event,
) -> None:
    """Keep `--concurrency` streams going until the count or the time is reached."""
    draw = random.Random(arguments.seed)
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
                stopping.set()  # the server is dead

    await asyncio.gather(*(work() for _ in range(arguments.concurrency)))


async def one_stream(
    client: AsyncTritonClient, prompt: str, reference: str, leave_at: int | None, tally: Tally
) -> None:
    """Read a stream to its end, or leave it after `leave_at` tokens (0: before the first)."""
    stream = client.stream(MODEL, prompt, SAMPLING, timeout=STREAM_SECONDS)
    text, resumes = "", 0
    try:
        async with asyncio.timeout(SECONDS_BEFORE_FIRST if leave_at == 0 else None):
            async for chunk in stream:
                text += chunk.text
                resumes = chunk.resumes
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
    tally.resumed += resumes > 0
    if text != reference:
        tally.wrong.append(f"{prompt!r}: {text!r} instead of {reference!r}")


async def keep_sampling(
    sampler: Sampler, samples: list[Sample], tally: Tally, every: float, stopping: asyncio.Event
) -> None:
    """Take and print a sample every few seconds."""
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


def report(samples: list[Sample], tally: Tally, files: ServerFiles) -> int:
    """Print the table and the problems; return the exit code."""
    print(Sample.head(samples[0]))
    for sample in samples:
        print(sample.line())
    print(f"\nstreams: {tally.began}, {dict(tally.counts)}")
    if crashes := read_restarts(files.restarts):
        print(f"tritonserver {describe_crashes(crashes)}; {tally.resumed} answers went on")
    problems = judge(samples, tally)
    for problem in problems:
        print(f"WRONG: {problem}")
    print("verdict:", "failed" if problems else "no problem found")
    if problems:
        lines = files.log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("the server's log ends:", *lines[-LAST_LINES:], sep="\n", file=sys.stderr)
    return 1 if problems else 0


def judge(samples: list[Sample], tally: Tally) -> list[str]:
    """Every broken criterion."""
    first, last = samples[0], samples[-1]
    if not last.server:
        return ["tritonserver is down"]
    problems = [f"text of {text}" for text in tally.wrong[:5]]
    problems += [f"{count} streams: {error}" for error, count in tally.errors.most_common(5)]
    if last.rss.keys() != first.rss.keys():
        return [*problems, f"processes are now {sorted(last.rss)}, were {sorted(first.rss)}"]
    if last.active:
        problems.append(
            f"{last.active:.0f} streams hold a slot {DRAIN_SECONDS:.0f} s after the end"
        )
    life = longest_life(samples)
    # Threads come with the first load: compare with the end of the warm-up.
    warm, last = warm_sample(life), life[-1]
    for name in last.threads:
        if last.threads[name] > warm.threads[name]:
            problems.append(f"{name} has {last.threads[name]} threads, had {warm.threads[name]}")
    if last.files > warm.files:
        problems.append(f"{last.files} files in /dev/shm, {warm.files} before")
    return problems + growth(warm, last, warm.streams - life[0].streams)


def longest_life(samples: list[Sample]) -> list[Sample]:
    """The samples of the server's process that had most streams."""
    lives = [list(life) for _, life in groupby(samples, key=lambda sample: sample.server)]
    return max(lives, key=lambda life: life[-1].streams - life[0].streams)


def warm_sample(life: list[Sample]) -> Sample:
    """The first sample after the warm-up."""
    enough = life[0].streams + WARM_UP_SHARE * (life[-1].streams - life[0].streams)
    return next(sample for sample in life if sample.streams >= enough)


def growth(warm: Sample, last: Sample, warmed_up: int) -> list[str]:
    """The processes that grow too fast. warmed_up: streams of the warm-up."""
    thousands = (last.streams - warm.streams) / 1000
    if not thousands:
        return []
    judged = warmed_up >= WARM_UP_STREAMS
    print("memory is judged:" if judged else "too short a life to judge memory:")
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
