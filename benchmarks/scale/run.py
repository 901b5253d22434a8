# SPDX-License-Identifier: Apache-2.0
"""Measures what one more server costs everything else: Envoy, whoever scrapes, a frontend's choice.

Usage: python benchmarks/scale/run.py [envoy] [scrape] [choice] [--endpoints 1 10 100 1000]
           [--seconds 20]

envoy: the project's own configuration before N addresses on loopback, all of which a second Envoy
answers as a ready server; static, where a deployment has one DNS name. Memory as Envoy counts it,
processor time while it does nothing but ask each whether it is ready (once a second and cluster).
scrape: a page of metrics of a real Triton with the shipped speller, idle: bytes, series, processor
time of the server and of a frontend that reads it. choice: a frontend's state and the time of one
choice among N replicas. See docs/explanation/scale.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

from bench import heading, running, say, speller, write_project  # noqa: E402
from tests.envoy_process import Envoy, binary  # noqa: E402
from tests.servers import server_pid  # noqa: E402
from tritonctl.frontend.routing.prefixes import block_hashes  # noqa: E402
from tritonctl.frontend.routing.reports import read_report  # noqa: E402
from tritonctl.frontend.routing.router import Router  # noqa: E402
from tritonctl.protocol.http import open_url  # noqa: E402
from tritonctl.server.gateway.placement import Upstream  # noqa: E402
from tritonctl.server.ports import held_ports  # noqa: E402

PARTS = ("envoy", "scrape", "choice")
SCRAPES, CHOICES = 300, 300
SETTLED_SECONDS = 5.0
MIB = 1 << 20


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--endpoints", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if "envoy" in given.parts:
            envoys(Path(folder), given.endpoints, given.seconds)
        if "scrape" in given.parts:
            scrapes(Path(folder))
    if "choice" in given.parts:
        choices(given.endpoints)
    return 0


def envoys(folder: Path, counts: Sequence[int], seconds: float) -> None:
    """Of Envoy, by the number of endpoints."""
    columns = ("endpoints", "allocated MiB", "resident MiB", "ready after s", "CPU % of a core")
    heading("Envoy, by endpoints of its two clusters", (*columns, "page of metrics KiB"))
    with answering(folder) as port:
        for count in counts:
            found = [Upstream(address(number), port, port) for number in range(count)]
            place = folder / str(count)
            place.mkdir()
            envoy = Envoy(place, found)
            data = yaml.safe_load(envoy.file.read_text(encoding="utf-8"))
            for cluster in data["static_resources"]["clusters"]:
                if cluster.get("type") == "STRICT_DNS":
                    cluster["type"] = "STATIC"
                    del cluster["dns_lookup_family"]
            envoy.file.write_text(yaml.safe_dump(data), encoding="utf-8")
            began = time.monotonic()
            with envoy:
                took = time.monotonic() - began
                time.sleep(SETTLED_SECONDS)
                pid = envoy.process.pid if envoy.process else 0
                used = cpu_seconds(pid)
                time.sleep(seconds)
                used = cpu_seconds(pid) - used
                ready = envoy.metric("envoy_cluster_membership_healthy")
                if ready < 2 * count:
                    print(f"only {ready:.0f} of {2 * count} endpoints are ready")
                say(
                    count,
                    f"{envoy.metric('envoy_server_memory_allocated') / MIB:.1f}",
                    f"{resident(pid) / MIB:.1f}",
                    f"{took:.1f}",
                    f"{100 * used / seconds:.1f}",
                    f"{len(envoy.admin('/stats/prometheus')) / 1024:.0f}",
                )


def address(number: int) -> str:
    """One of the addresses of loopback, of which there are millions."""
    return f"127.{1 + number // 65_000}.{number // 250 % 256}.{1 + number % 250}"


@contextmanager
def answering(folder: Path) -> Iterator[int]:
    """The port at which a second Envoy says at every address of loopback that it is ready."""
    with held_ports("127.0.0.1", {"port": 0}) as [port]:
        pass
    kind = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    manager = {
        "@type": f"type.googleapis.com/{kind}",
        "stat_prefix": "ready",
        "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [answer]}]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"type.googleapis.com/{router}"}}
        ],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    where = {"socket_address": {"address": "0.0.0.0", "port_value": port}}  # noqa: S104 - loopback's
    listener = {"name": "ready", "address": where, "filter_chains": [chain]}
    file = folder / "answering.yaml"
    file.write_text(json.dumps({"static_resources": {"listeners": [listener]}}), encoding="utf-8")
    command = [str(binary()), "-c", str(file), "--disable-hot-restart", "--concurrency", "1"]
    with subprocess.Popen([*command, "--log-level", "error"]) as process:
        try:
            time.sleep(2)
            yield port
        finally:
            process.terminate()


def scrapes(folder: Path) -> None:
    """Of a page of metrics, on both its sides."""
    with running(write_project(folder, speller())) as state:
        url = f"http://{state.address}:{state.metrics_port}/metrics"
        pid = server_pid(state)
        page = fetched(url)
        time.sleep(SETTLED_SECONDS)
        idle = cpu_seconds(pid)
        time.sleep(SETTLED_SECONDS)
        idle = (cpu_seconds(pid) - idle) / SETTLED_SECONDS
        began, used = time.monotonic(), cpu_seconds(pid)
        times = [timed(lambda: fetched(url)) for _ in range(SCRAPES)]
        took = time.monotonic() - began
        used = (cpu_seconds(pid) - used - idle * took) / SCRAPES
    series = sum(not line.startswith("#") for line in page.splitlines())
    read = [timed(lambda: read_report(page, 0.0)) for _ in range(SCRAPES)]
    columns = ("bytes", "gzip", "series", "server CPU ms", "answer P50 ms", "reading it P50 ms")
    heading("A page of metrics", columns)
    say(
        len(page),
        len(gzip.compress(page.encode())),
        series,
        f"{1000 * used:.2f}",
        f"{1000 * statistics.median(times):.2f}",
        f"{1000 * statistics.median(read):.2f}",
    )


def choices(counts: Sequence[int]) -> None:
    """Of a frontend that knows so many replicas."""
    report = read_report("", 0.0)
    heading("A frontend's choice", ("replicas", "KiB each", "choice P50 ms", "with affinity"))
    for count in counts:
        urls = [f"{address(number)}:8001" for number in range(count)]
        client = cast("Any", SimpleNamespace(reach=lambda _: None))
        tracemalloc.start()
        router = Router(client, urls, clock=lambda: 0.0)
        for replica in router.replicas.values():
            replica.slots["speller"], replica.pace = 32, 0.02
            replica.reported(report)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        hashes = block_hashes(b"x" * 16_384, "speller")
        found = []
        for known in ((), hashes):
            once = partial(router.place, "speller", 1.0, known, set())
            found.append(1000 * statistics.median([timed(once) for _ in range(CHOICES)]))
        say(count, f"{size / 1024 / count:.1f}", *(f"{each:.3f}" for each in found))


def fetched(url: str) -> str:
    """A page, by a connection of its own as the frontend's."""
    with open_url(url, 10) as answer:
        return cast("bytes", answer.read()).decode()


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    """Of a process so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


if __name__ == "__main__":
    sys.exit(main())
