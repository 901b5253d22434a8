# SPDX-License-Identifier: Apache-2.0
"""Users move to a candidate, and back, through a real Envoy: who, when, and what is under way."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from tests.envoy_process import Envoy, validate
from tritonctl.errors import HostError
from tritonctl.gateway.envoy import METRICS_PATH
from tritonctl.gateway.placement import EnvoyUpstream, ServerGroup, SlotGroups
from tritonctl.gateway.shares import CANDIDATE, ROUTES, STABLE, endpoint_files
from tritonctl.host.files import write_atomically
from tritonctl.project.rollout import Rollout
from tritonctl.protocol.metrics import Metrics
from tritonctl.releases.slots import Slot
from tritonctl.rollout.served_routes import ROUTES_QUERY, serves_routes
from tritonctl.rollout.traffic import Traffic

pytestmark = pytest.mark.timed

USERS = [f"user-{number}" for number in range(2000)]
STEPS = (1.0, 5.0, 25.0, 50.0, 100.0)
ROLLOUT = Rollout(user_header="x-user-id")
RELEASE = ROLLOUT.release_header
CONNECTIONS = 8
PATIENCE_SECONDS = 30.0
_ALLOWED_SIGMAS = 4.0


class Servers:
    """Stands for the servers of a release: ready, and answers with the release's name."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._open: set[asyncio.Transport] = set()

    async def start(self) -> EnvoyUpstream:
        """On a free port, for REST; nobody here asks by gRPC."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return EnvoyUpstream("127.0.0.1", port, port)

    def kill(self) -> None:
        """As a crash does: no new connections, and the open ones are cut."""
        self._server.close()
        for transport in list(self._open):
            transport.abort()

    def opened(self, transport: asyncio.Transport) -> None:
        """A connection, until `closed`."""
        self._open.add(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """It ended, or was cut."""
        self._open.discard(transport)

    def answer(self, path: bytes) -> bytes:
        """Health, or whose answer this is."""
        body = b"" if b"/health/" in path else self._name
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with requests that have no body."""

    def __init__(self, servers: Servers) -> None:
        self._servers, self._waiting = servers, b""
        self._stream: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._servers.opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's."""
        del exc
        self._servers.closed(self._transport)
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self._waiting += data
        while b"\r\n\r\n" in self._waiting:
            head, self._waiting = self._waiting.split(b"\r\n\r\n", 1)
            path = head.split(b" ", 2)[1]
            if path.endswith(b"generate_stream"):
                self._stream = asyncio.ensure_future(self._count())
            else:
                self._transport.write(self._servers.answer(path))

    async def _count(self) -> None:
        """0, 1, 2 ... a line each, for as long as somebody listens."""
        self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        number = 0
        while True:
            line = b"%d\n" % number
            self._transport.write(b"%x\r\n%b\r\n" % (len(line), line))
            number += 1
            await asyncio.sleep(0.01)


class Client:
    """A connection to Envoy."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, headers: Mapping[str, str], path: str = "/v2/models/m") -> str:
        """Who answered; the status where it is not 200."""
        if not hasattr(self, "_reader"):
            await self.send(headers, path)
        else:
            self._write(headers, path)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = (await self._reader.readexactly(length)).decode()
        return body if status == b"200" else status.decode()

    async def send(self, headers: Mapping[str, str], path: str) -> asyncio.StreamReader:
        """A request over a new connection; what is answered is still to be read."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._write(headers, path)
        return self._reader

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def _write(self, headers: Mapping[str, str], path: str) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())


class Stream:
    """One that counts, and is read all the time."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self.seen: list[int] = []
        self._client = Client(port)
        self._task = asyncio.ensure_future(self._read(headers))

    async def _read(self, headers: Mapping[str, str]) -> None:
        reader = await self._client.send(headers, "/v2/models/m/generate_stream")
        await reader.readuntil(b"\r\n\r\n")
        rest = b""
        while True:
            size = int(await reader.readline(), 16)
            *lines, rest = (rest + await reader.readexactly(size)).split(b"\n")
            self.seen += map(int, lines)
            await reader.readexactly(2)

    async def goes_on(self) -> None:
        """Ten more numbers, and none is lost or comes twice."""
        until = len(self.seen) + 10
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.seen) < until:
            assert not self._task.done(), "the stream was cut"
            assert time.monotonic() < deadline, "the stream stands still"
            await asyncio.sleep(0.01)
        assert self.seen == list(range(len(self.seen)))

    def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        self._client.close()


class Rig:
    """Both releases behind Envoy."""

    def __init__(self, envoy: Envoy, traffic: Traffic, candidate: Servers) -> None:
        self.envoy, self.traffic, self.candidate = envoy, traffic, candidate

    async def answers(self, users: Sequence[str]) -> dict[str, str]:
        """Who answers each of them, once."""
        waiting, found = list(users), dict[str, str]()

        async def work() -> None:
            client = Client(self.envoy.port)
            while waiting:
                user = waiting.pop()
                found[user] = await client.ask({"x-user-id": user})
            client.close()

        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
        return found

    async def moved(self, users: Sequence[str]) -> set[str]:
        """Those of them whom the candidate answers; stable all others."""
        answers = await self.answers(users)
        assert set(answers.values()) <= {STABLE, CANDIDATE}, answers
        return {user for user, answer in answers.items() if answer == CANDIDATE}

    async def read_by_envoy(self, share: float) -> None:
        """After a move, until Envoy has done it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await asyncio.to_thread(self.serves_what_was_written):
            assert time.monotonic() < deadline, f"Envoy never read the routes of {share:g} %"
            await asyncio.sleep(0.02)

    async def move(self, share: float) -> None:
        """A step, and Envoy has done it."""
        self.traffic.move(share)
        await self.read_by_envoy(share)

    def serves_what_was_written(self) -> bool:
        """By Envoy's own report, as a rollout asks for it."""
        page = self.envoy.admin(f"{METRICS_PATH}?{ROUTES_QUERY}")
        return serves_routes(Metrics.parse(page), self.traffic.written_version())

    async def seconds_to_roll_back(self, users: Sequence[str]) -> float:
        """From the call to the start of the last request that the candidate answered.

        The users ask all the time, before it, too. 0 if there is none.
        """
        began, last = math.inf, 0.0
        after = dict.fromkeys(range(CONNECTIONS), 0)  # answers of stable in a row
        deadline = time.monotonic() + PATIENCE_SECONDS

        async def work(own: int) -> None:
            nonlocal last
            client, number = Client(self.envoy.port), own
            while min(after.values()) < 20:
                assert time.monotonic() < deadline, "the candidate still has users"
                sent = time.monotonic()
                answer = await client.ask({"x-user-id": users[number % len(users)]})
                number += CONNECTIONS
                after[own] = 0 if answer == CANDIDATE else after[own] + 1
                if answer == CANDIDATE and sent >= began:
                    last = max(sent - began, last)
            client.close()

        working = [asyncio.ensure_future(work(own)) for own in range(CONNECTIONS)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await asyncio.to_thread(self.traffic.roll_back)
        await asyncio.gather(*working)
        return last


@asynccontextmanager
async def rig(root: Path, retries: int = 0) -> AsyncIterator[Rig]:
    """Started; all users are stable's."""
    stable, candidate = Servers(STABLE), Servers(CANDIDATE)
    upstream, other = await stable.start(), await candidate.start()
    folder = root / "routes"
    envoy = Envoy(
        root,
        [upstream],
        {"retries": retries},
        concurrency=2,
        slots=SlotGroups(
            Slot.A,
            str(folder / ROUTES),
            groups={Slot.A: ServerGroup((upstream,)), Slot.B: ServerGroup((other,))},
        ),
    )
    traffic = Traffic(folder, envoy.gateway, envoy.placement, ROLLOUT)
    traffic.write_initial_routes()
    try:
        await asyncio.to_thread(envoy.start)
        yield Rig(envoy, traffic, candidate)
    finally:
        envoy.close()
        stable.kill()
        candidate.kill()


def _within_chance(found: int, share: float) -> bool:
    """Of USERS, if each had this share's chance."""
    chance = share / 100
    spread = math.sqrt(len(USERS) * chance * (1 - chance))
    return abs(found - len(USERS) * chance) <= _ALLOWED_SIGMAS * spread


def test_users_move_one_way_and_all_back(tmp_path: Path) -> None:
    """Each share within chance, nobody back but by the rollback, and no open stream is cut."""

    async def steps() -> None:
        async with rig(tmp_path) as made:
            port = made.envoy.port
            streams = [
                Stream(port, {"x-user-id": USERS[0]}),
                Stream(port, {RELEASE: CANDIDATE}),
            ]
            assert await made.moved(USERS[:200]) == set()
            before: set[str] = set()
            for share in STEPS:
                await made.move(share)
                moved = await made.moved(USERS)
                assert _within_chance(len(moved), share), f"{len(moved)} users at {share:g} %"
                assert before <= moved
                for stream in streams:
                    await stream.goes_on()
                before = moved
                if share == 25.0:
                    assert await made.moved(USERS[:500]) == moved.intersection(USERS[:500])
                    await _assert_headers_say_otherwise(made, moved)
            await made.seconds_to_roll_back(USERS)
            await made.read_by_envoy(0)
            assert await made.moved(USERS[:200]) == set()
            made.traffic.roll_back()  # the same routes, written anew: they are served as such
            await made.read_by_envoy(0)
            made.traffic.file.unlink()
            with pytest.raises(HostError):
                made.traffic.written_version()
            for stream in streams:
                await stream.goes_on()
                stream.close()

    asyncio.run(steps())


async def _assert_headers_say_otherwise(made: Rig, moved: set[str]) -> None:
    """Testers choose, whoever they are; who is nobody is stable's."""
    client = Client(made.envoy.port)
    mover, stayer = min(moved), min(set(USERS) - moved)
    assert await client.ask({"x-user-id": stayer, RELEASE: CANDIDATE}) == CANDIDATE
    assert await client.ask({"x-user-id": mover, RELEASE: STABLE}) == STABLE
    assert await client.ask({"x-user-id": mover, RELEASE: "neither"}) == CANDIDATE
    assert await client.ask({RELEASE: CANDIDATE}) == CANDIDATE
    for nobody in ({}, {"x-user-id": ""}):
        assert {await client.ask(nobody) for _ in range(50)} == {STABLE}
    client.close()


@pytest.mark.parametrize(("retries", "pause"), [(2, 0.0), (0, 0.5)])
def test_a_dead_candidate_keeps_nobody(retries: int, pause: float, tmp_path: Path) -> None:
    """Not one request fails, from the first one on; a restarted Envoy moves nobody.

    Without retries, Envoy must have seen that its idle connections are cut.
    """

    async def steps() -> None:
        async with rig(tmp_path, retries) as made:
            await made.move(50)
            moved = sorted(await made.moved(USERS[:400]))
            await asyncio.to_thread(made.envoy.stop)
            await asyncio.to_thread(made.envoy.start)
            assert sorted(await made.moved(USERS[:400])) == moved
            made.candidate.kill()
            await asyncio.sleep(pause)
            assert set((await made.answers(moved)).values()) == {STABLE}
            client = Client(made.envoy.port)
            assert await client.ask({RELEASE: CANDIDATE}) == "503"  # a tester wants to know
            client.close()

    asyncio.run(steps())


def test_envoy_accepts_the_routes(tmp_path: Path) -> None:
    """With tenants, a frontend of each release and retries: as a whole, without a warning."""
    (tmp_path / "alice.key").write_text("5ecret\n")
    gateway = {"tenants": {"alice": {"api_key_file": "alice.key", "requests_per_minute": 60}}}
    upstream, other = EnvoyUpstream("127.0.0.1", 9001, 9000), EnvoyUpstream("127.0.0.1", 9003, 9002)
    envoy = Envoy(
        tmp_path,
        [upstream],
        gateway,
        frontend=("127.0.0.1", 9004),
        slots=SlotGroups(
            Slot.B,
            str(tmp_path / ROUTES),
            groups={
                Slot.A: ServerGroup((other,), ("127.0.0.1", 9005)),
                Slot.B: ServerGroup((upstream,), ("127.0.0.1", 9004)),
            },
        ),
    )
    traffic = Traffic(tmp_path, envoy.gateway, envoy.placement, ROLLOUT)
    traffic.move(5)
    # `--mode validate` does not read files of routes: put them where it does.
    whole = yaml.safe_load(envoy.file.read_text())
    (routes,) = json.loads(traffic.file.read_text())["resources"]
    del routes["@type"]
    listener = whole["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["rds"]
    manager["route_config"] = routes
    envoy.file.write_text(yaml.safe_dump(whole))
    done = validate(envoy.file)
    envoy.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stderr.splitlines() if "[warning]" in line] == []


def test_servers_come_and_go_in_files(tmp_path: Path) -> None:
    """A slot is filled, has users, is emptied: none of it cuts a stream or fails a request."""

    async def steps() -> None:
        stable, candidate = Servers(STABLE), Servers(CANDIDATE)
        upstream, other = await stable.start(), await candidate.start()
        routes, servers = tmp_path / "routes", tmp_path / "endpoints"
        slots = SlotGroups(Slot.B, str(routes / ROUTES), str(servers))
        envoy = Envoy(tmp_path, [upstream], {"retries": 0}, slots=slots)

        def place(slot: Slot, *found: EnvoyUpstream) -> None:
            for name, text in endpoint_files(envoy.placement, slot, ServerGroup(found)).items():
                write_atomically(servers / name, text)

        async def known(slot: Slot, count: int) -> None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            name = {"envoy_cluster_name": f"triton_rest_{slot}"}
            metric = "envoy_cluster_membership_healthy"
            while await asyncio.to_thread(envoy.metric, metric, **name) != count:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)

        traffic = Traffic(routes, envoy.gateway, envoy.placement, ROLLOUT)
        traffic.write_initial_routes()
        place(Slot.A)
        place(Slot.B, upstream)
        try:
            await asyncio.to_thread(envoy.start)
            made = Rig(envoy, traffic, candidate)
            streams = [Stream(envoy.port, {"x-user-id": USERS[0]})]
            await streams[0].goes_on()
            place(Slot.A, other)
            await known(Slot.A, 1)
            await made.move(50)
            moved = sorted(await made.moved(USERS[:200]))
            streams.append(Stream(envoy.port, {"x-user-id": moved[0]}))
            await streams[1].goes_on()
            place(Slot.A)
            await known(Slot.A, 0)
            assert set((await made.answers(moved)).values()) == {STABLE}
            place(Slot.A, other)
            await known(Slot.A, 1)
            assert await made.moved(USERS[:200]) == {*moved}
            for stream in streams:
                await stream.goes_on()
                stream.close()
        finally:
            envoy.close()
            stable.kill()
            candidate.kill()

    asyncio.run(steps())
