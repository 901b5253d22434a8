# SPDX-License-Identifier: Apache-2.0
"""Which replica? Four ways to choose one, by the 99th percentile of the time to the first token.

Usage: python benchmarks/frontend/routing.py [--seconds 40] [--rounds 2] [--load 0.75] [--pools]

Replicas are mock endpoints with scripted speed (replica.py), reached through a real Envoy by its
least requests; its client-side weighted round robin by the replicas' ORCA reports; `override_host`
with the frontend's choice in a header, without and with prefix affinity. Requests arrive by chance,
nine of ten with short answers; each begins with one of 48 system prompts. Rounds are interleaved,
every way gets the same requests, and a run in which this machine stood still is done again.
--pools: short and long requests apart, against one pool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml
from tritonclient.grpc import service_pb2

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parents[1])]

from tests.envoy_process import Envoy  # noqa: E402
from tritonctl.frontend.counting.prompts import PromptCounter  # noqa: E402
from tritonctl.frontend.routing.pools import Pool  # noqa: E402
from tritonctl.frontend.routing.router import Router, Settings  # noqa: E402
from tritonctl.frontend.routing.watch import Upstream as Watched  # noqa: E402
from tritonctl.frontend.routing.watch import Watch  # noqa: E402
from tritonctl.protocol.client import AsyncTritonClient  # noqa: E402
from tritonctl.protocol.generation import (  # noqa: E402
    Chunk,
    SamplingParameters,
    generation_request,
    read_chunk,
)
from tritonctl.server.gateway.placement import Upstream  # noqa: E402

MODEL, HEADER = "mock", "x-replica"
METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
SHORT, LONG, LONG_SHARE = 30, 300, 0.1
SYSTEM_PROMPTS, SYSTEM_WORDS = 48, 600
WARM_UP = 0.25  # of the seconds
MOST_STOOD = 0.5  # seconds
_EXTENSION = "type.googleapis.com/envoy.extensions.load_balancing_policies"


@dataclass(frozen=True)
class Speed:
    """Of one replica."""

    slots: int = 8
    itl: float = 15.0
    prefill: float = 0.1
    slow_factor: float = 1.0

    @property
    def options(self) -> list[str]:
        """Of replica.py; it slows down after the warm-up."""
        given = {"slots": self.slots, "itl": self.itl, "prefill": self.prefill}
        if self.slow_factor > 1:
            given |= {"slow-after": 0, "slow-factor": self.slow_factor}
        return [part for name, value in given.items() for part in (f"--{name}", str(value))]

    @property
    def rate(self) -> float:
        """Requests that it can answer in a second."""
        tokens = SHORT * (1 - LONG_SHARE) + LONG * LONG_SHARE
        seconds = (5.0 + tokens * self.itl + SYSTEM_WORDS * self.prefill) / 1000
        return self.slots / (seconds * self.slow_factor)


SCENARIOS: Mapping[str, Sequence[Speed]] = {
    "equal replicas": [Speed()] * 4,
    "heterogeneous": [Speed(16, 10.0, 0.05), Speed(), Speed(4, 30.0, 0.2), Speed(4, 30.0, 0.2)],
    "one slow": [Speed(slow_factor=6.0), Speed(), Speed(), Speed()],
}
WAYS = ("least requests", "ORCA weights", "frontend's choice", "with affinity")
POOLS = ("one pool", "two pools")
CHOSEN = {"frontend's choice", "with affinity", *POOLS}  # the frontend says which replica


@dataclass(frozen=True)
class Asked:
    """One request: when, after the start, and what."""

    at: float
    prompt: str
    tokens: int


@dataclass
class Times:
    """Milliseconds to the first token, of short answers and of long ones.

    stood: the longest time for which the client itself did not run, seconds.
    """

    short: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    failures: int = 0
    stood: float = 0.0

    def add(self, other: Times) -> None:
        """Of another round."""
        self.short += other.short
        self.long += other.long
        self.failures += other.failures


def requests(seed: int, rate: float, seconds: float) -> list[Asked]:
    """The same for every way."""
    draw = random.Random(seed)
    systems = [f"{n} " + "word " * SYSTEM_WORDS for n in range(SYSTEM_PROMPTS)]
    asked, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        tokens = LONG if draw.random() < LONG_SHARE else SHORT
        asked.append(Asked(at, f"{draw.choice(systems)} {draw.random()}", tokens))
    return asked


@contextmanager
def replicas(speeds: Sequence[Speed]) -> Iterator[list[Upstream]]:
    """Processes of their own."""
    with ExitStack() as stack:
        found = []
        for speed in speeds:
            command = [sys.executable, str(HERE / "replica.py"), *speed.options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ports = json.loads((process.stdout or sys.stdin).readline())
            found.append(Upstream("127.0.0.1", ports["grpc"], ports["http"]))
        yield found


def policy(way: str) -> dict[str, Any]:
    """Envoy's load balancing policy for a way."""
    least = {"@type": f"{_EXTENSION}.least_request.v3.LeastRequest"}
    if way == "ORCA weights":
        name, config = (
            "client_side_weighted_round_robin",
            {
                "@type": f"{_EXTENSION}.client_side_weighted_round_robin.v3"
                ".ClientSideWeightedRoundRobin",
                "enable_oob_load_report": True,
                "oob_reporting_period": "0.1s",
                "blackout_period": "1s",
                "weight_update_period": "0.1s",
            },
        )
    elif way == "least requests":
        name, config = "least_request", least
    else:
        fallback = {"policies": [_typed("least_request", least)]}
        name, config = (
            "override_host",
            {
                "@type": f"{_EXTENSION}.override_host.v3.OverrideHost",
                "override_host_sources": [{"header": HEADER}],
                "fallback_policy": fallback,
            },
        )
    return {"policies": [_typed(name, config)]}


def _typed(name: str, config: dict[str, Any]) -> dict[str, Any]:
    full = f"envoy.load_balancing_policies.{name}"
    return {"typed_extension_config": {"name": full, "typed_config": config}}


@contextmanager
def envoy(folder: Path, upstreams: Sequence[Upstream], way: str) -> Iterator[Envoy]:
    """The project's own gateway with another policy for gRPC."""
    one = Envoy(folder, upstreams, {"retries": 0})
    record = yaml.safe_load(one.file.read_text(encoding="utf-8"))
    for cluster in record["static_resources"]["clusters"]:
        if cluster["name"] == "triton_grpc":
            del cluster["lb_policy"]
            cluster["load_balancing_policy"] = policy(way)
    one.file.write_text(yaml.safe_dump(record), encoding="utf-8")
    with one:
        yield one


class Asking:
    """Sends the requests of one run, and keeps what became of them in `times`."""

    def __init__(self, router: Router, channel: grpc.aio.Channel, way: str, warm: float) -> None:
        self.times = Times()
        self._router, self._way, self._warm = router, way, warm
        self._call = channel.unary_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()

    async def all(self, asked: Sequence[Asked]) -> None:
        """Each at its time; those of the warm-up do not count."""
        beating = asyncio.create_task(self._beat())
        await asyncio.gather(*map(self._one, asked))
        beating.cancel()

    async def _one(self, one: Asked) -> None:
        await asyncio.sleep(self._start + one.at - self._loop.time())
        try:
            first = await self._first_token(one)
        except grpc.RpcError:
            self.times.failures += 1
            return
        if first is not None and one.at >= self._warm:
            kind = self.times.long if one.tokens == LONG else self.times.short
            kind.append((first - self._start - one.at) * 1000)

    async def _first_token(self, one: Asked) -> float | None:
        """When it came, once the whole answer has come."""
        request = generation_request(MODEL, one.prompt, SamplingParameters(max_tokens=one.tokens))
        work, first = self._work(one), None
        chosen = self._router.choose(MODEL, work=work, beginning=one.prompt.encode())
        async with chosen as placement:
            metadata = ((HEADER, placement.url),) if self._way in CHOSEN else ()
            async for response in self._call(request, metadata=metadata, timeout=120):
                chunk, _ = read_chunk(response)
                if isinstance(chunk, Chunk):
                    first = first or self._loop.time()
                    placement.came(chunk)
        return first

    def _work(self, one: Asked) -> int:
        """As the router is told it; with two pools it puts long requests beyond the short pool."""
        if self._way != "two pools":
            return SYSTEM_WORDS + SHORT
        return SYSTEM_WORDS + one.tokens + 1000 * (one.tokens == LONG)

    async def _beat(self) -> None:
        before = self._loop.time()
        while True:
            await asyncio.sleep(0.05)
            now = self._loop.time()
            self.times.stood, before = max(self.times.stood, now - before), now


async def run(
    url: str, upstreams: Sequence[Upstream], way: str, asked: Sequence[Asked], warm: float
) -> Times:
    """All requests of a run, through a gateway at `url`."""
    grpc_urls = [f"{each.host}:{each.grpc_port}" for each in upstreams]
    async with AsyncTritonClient(grpc_urls[0]) as client, grpc.aio.insecure_channel(url) as channel:
        settings = Settings(affinity=way == "with affinity")
        router = Router(client, grpc_urls, pools(grpc_urls) if way == "two pools" else {}, settings)
        watched = [Watched(each.host, each.grpc_port, each.http_port) for each in upstreams]
        counter = PromptCounter(None, HERE, lambda _: None)
        watch = Watch(router, client, watched, [MODEL], counter, lambda _: None)
        await watch.start()
        asking = Asking(router, channel, way, warm)
        await asking.all(asked)
        await watch.close()
    return asking.times


def pools(urls: Sequence[str]) -> dict[str, list[Pool]]:
    """One for short requests and one for long ones: these are a tenth, and half of all work."""
    half = len(urls) // 2
    short = Pool("short", frozenset(urls[:half]), 1000)
    return {MODEL: [short, Pool("long", frozenset(urls[half:]))]}


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of one run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--load", type=float, default=0.75, help="share of the capacity")
    parser.add_argument("--pools", action="store_true", help="two pools against one")
    parser.add_argument("--scenario", choices=list(SCENARIOS), action="append")
    arguments = parser.parse_args()
    ways = POOLS if arguments.pools else WAYS
    print("| replicas | way | requests | TTFT P50 ms | P95 | P99 | short P99 | long P99 | failed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.scenario or SCENARIOS:
        found = {way: Times() for way in ways}
        for number in range(arguments.rounds):
            rate = arguments.load * sum(speed.rate for speed in SCENARIOS[name])
            asked = requests(number, rate, arguments.seconds)
            for way in ways:
                found[way].add(measured(SCENARIOS[name], way, asked, arguments.seconds))
        for way, times in found.items():
            print(row(name, way, times), flush=True)


def measured(speeds: Sequence[Speed], way: str, asked: Sequence[Asked], seconds: float) -> Times:
    """A run in which the client never stood still for long; of at most ten."""
    for _ in range(10):
        try:
            with (
                tempfile.TemporaryDirectory() as folder,
                replicas(speeds) as upstreams,
                envoy(Path(folder), upstreams, way) as gateway,
            ):
                times = asyncio.run(run(gateway.url, upstreams, way, asked, seconds * WARM_UP))
        except AssertionError:  # Envoy did not start in a minute
            continue
        if times.stood <= MOST_STOOD:
            print(row("one run", way, times), file=sys.stderr, flush=True)
            return times
        print(f"the machine stood still for {times.stood:.1f} s: again", file=sys.stderr)
    raise SystemExit("this machine stands still too often to measure times")


def row(name: str, way: str, times: Times) -> str:
    """Of the table."""
    every = sorted(times.short + times.long)
    figures = [statistics.median(every), *(at(every, q) for q in (0.95, 0.99))]
    figures += [at(sorted(times.short), 0.99), at(sorted(times.long), 0.99)]
    cells = [name, way, str(len(every)), *(f"{each:.0f}" for each in figures), str(times.failures)]
    return f"| {' | '.join(cells)} |"


def at(ordered: Sequence[float], share: float) -> float:
    """A quantile."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


if __name__ == "__main__":
    main()
