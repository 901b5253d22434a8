# SPDX-License-Identifier: Apache-2.0
"""What hostile requests cost everybody else: streams beside each attack, and beside none.

Usage: python benchmarks/hostile/run.py [--rounds 5] [--seconds 8]

The shipped speller on a real Triton behind the frontend, in processes of their own. Four users
stream answers one after the other; in each round each attack runs once, in random order, and so
does none. A row has, over all rounds, the longest time that a user waited for a first token and
between two events, and its ratio to that of the same round without an attack [lowest to highest].
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

from bench import MODEL, heading, running, say, speller, write_project  # noqa: E402
from tests.clients.frontend_process import frontend  # noqa: E402
from tritonctl.frontend.config import FrontendConfig  # noqa: E402

USERS, TOKENS, PATIENCE = 4, 60, 120.0
CHAT = "/v1/chat/completions"
BODY_BYTES = 10_000_000
BAD_PATTERN = "(([a-z ]*)*([a-z ]*)*)*z"
ABANDONED, CONNECTIONS = 15, 1_030
Attack = Callable[["Target", threading.Event], None]


@dataclass(frozen=True)
class Target:
    """The frontend's address."""

    host: str
    port: int

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)

    def post(self, body: bytes) -> int:
        """Send a chat request and read its whole answer; return the status."""
        connection = self.connection()
        try:
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


def question(**fields: object) -> bytes:
    """A chat request."""
    messages = [{"role": "user", "content": "7342 in English:"}]
    return json.dumps({"model": MODEL, "messages": messages, **fields}).encode()


@dataclass
class Seen:
    """Milliseconds that users waited, and requests that were not answered whole."""

    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failed: int = 0


def use(target: Target, done: threading.Event, seen: Seen) -> None:
    """Stream answers one after the other."""
    body = question(stream=True, max_tokens=TOKENS, ignore_eos=True)
    while not done.is_set():
        connection, last, events = target.connection(), time.perf_counter(), 0
        try:
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while line := answer.readline():
                if line.startswith(b"data: "):
                    now = time.perf_counter()
                    waits = seen.gaps if events else seen.first_tokens
                    waits.append(1000 * (now - last))
                    last, events = now, events + 1
            seen.failed += answer.status != http.client.OK
        except OSError:
            seen.failed += 1
        finally:
            connection.close()


def none(_: Target, done: threading.Event) -> None:
    """Nobody attacks."""
    done.wait()


def large_body(target: Target, done: threading.Event) -> None:
    """10 MB of numbers in place of a text, again and again."""
    head = b'{"model":"%s","messages":[{"role":"user","content":[' % MODEL.encode()
    body = head + b",".join([b"1"] * (BODY_BYTES // 2)) + b"]}]}"
    while not done.is_set():
        target.post(body)


def slow_guide(target: Target, done: threading.Event) -> None:
    """A pattern that takes an engine a minute a token."""
    schema = {"type": "string", "pattern": BAD_PATTERN}
    guide = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    while not done.is_set():
        target.post(question(response_format=guide, max_tokens=TOKENS))


def abandoned_guides(target: Target, done: threading.Event) -> None:
    """15 schemas at a time, whose clients leave at once; and one more, which is waited for."""
    while not done.is_set():
        for number in (*range(ABANDONED), None):
            properties = {f"{number}_{n}_{random.random()}": {"type": "string"} for n in range(200)}
            schema = {"type": "object", "properties": properties}
            guide = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
            body = question(response_format=guide, max_tokens=1)
            if number is None:
                target.post(body)
                continue
            connection = target.connection()
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            connection.close()


def unfinished_bodies(target: Target, done: threading.Event) -> None:
    """1,030 connections, each with one byte of its body."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n{"
    ).encode()
    sockets: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS):
            try:
                sockets.append(socket.create_connection((target.host, target.port), timeout=5))
                sockets[-1].sendall(head)
            except OSError:
                break
        done.wait()
    finally:
        for each in sockets:
            each.close()


ATTACKS: dict[str, Attack] = {
    "none": none,
    f"bodies of {BODY_BYTES // 1_000_000} MB": large_body,
    "guides that stall an engine": slow_guide,
    f"{ABANDONED} abandoned guides": abandoned_guides,
    f"{CONNECTIONS:,} unfinished bodies": unfinished_bodies,
}


def measured(target: Target, attack: Attack, seconds: float) -> Seen:
    """Users beside an attack."""
    seen, over, done = Seen(), threading.Event(), threading.Event()
    attacker = threading.Thread(target=attack, args=(target, over))
    users = [threading.Thread(target=use, args=(target, done, seen)) for _ in range(USERS)]
    for thread in (attacker, *users):
        thread.start()
    time.sleep(seconds)
    over.set()
    attacker.join()
    done.set()
    for user in users:
        user.join()
    return seen


@contextmanager
def served() -> Iterator[Target]:
    """The frontend in front of a Triton."""
    with tempfile.TemporaryDirectory() as name:
        project = write_project(Path(name), speller())
        with running(project) as state:
            config = FrontendConfig.of(project, [state.grpc_url])
            with frontend(config, Path(name)) as url:
                parts = urlsplit(url)
                target = Target(parts.hostname or "", parts.port or 80)
                assert target.post(question(max_tokens=4)) == http.client.OK  # noqa: S101
                yield target


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")
    arguments = parser.parse_args()
    rounds: list[dict[str, Seen]] = []
    with served() as target:
        for number in range(arguments.rounds):
            order = random.sample(sorted(ATTACKS), len(ATTACKS))
            rounds.append({n: measured(target, ATTACKS[n], arguments.seconds) for n in order})
            sys.stderr.write(f"round {number + 1}\n")
    table(rounds)


def table(rounds: list[dict[str, Seen]]) -> None:
    """A row for each attack."""
    columns = ("attack", "answers", "failed", "first token P50 ms", "longest", "to none",
               "between events P50 ms", "longest", "to none")  # fmt: skip
    heading("What four users wait for", columns)
    for name in ATTACKS:
        seen = [each[name] for each in rounds]
        calm = [each["none"] for each in rounds]
        firsts = [value for each in seen for value in each.first_tokens]
        gaps = [value for each in seen for value in each.gaps]
        say(
            name, len(firsts), sum(each.failed for each in seen),
            f"{statistics.median(firsts):.1f}", f"{max(firsts):.0f}",
            ratios(seen, calm, lambda each: max(each.first_tokens)),
            f"{statistics.median(gaps):.1f}", f"{max(gaps):.0f}",
            ratios(seen, calm, lambda each: max(each.gaps)),
        )  # fmt: skip


def ratios(seen: list[Seen], calm: list[Seen], of: Callable[[Seen], float]) -> str:
    """Median [lowest to highest] over the rounds."""
    if seen == calm:
        return ""
    values = [of(a) / of(b) for a, b in zip(seen, calm, strict=True)]
    return f"{statistics.median(values):.1f} [{min(values):.1f} to {max(values):.1f}]"


if __name__ == "__main__":
    main()
