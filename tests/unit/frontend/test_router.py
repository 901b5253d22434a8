# SPDX-License-Identifier: Apache-2.0
"""Requests placed on real gRPC servers: counted while they last, moved when their server breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from tests.unit.protocol.test_resuming import (
    NOBODY,
    PATIENCE_SECONDS,
    WORDS,
    Replica,
    serving,
    vanish,
)
from tritonctl.errors import ServerBusyError, ServerError
from tritonctl.frontend.routing.pools import ReplicaPool
from tritonctl.frontend.routing.router import Router, RoutingSettings
from tritonctl.frontend.upstream import StreamingClient
from tritonctl.protocol.generation import SamplingParameters

pytestmark = pytest.mark.timed

GREEDY = SamplingParameters()
TEXT = "".join(WORDS)
BUSY_SECONDS = 1.0  # on a busy machine a server that answers at once is silent for less


class Full(Replica):
    """Refuses each request, as Triton's queue does."""

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: ARG002, N802
        """A message in the stream."""
        yield service_pb2.ModelStreamInferResponse(error_message="Exceeds maximum queue size")


def hang(context: Any) -> None:
    """Says nothing more, until the client leaves."""
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(PATIENCE_SECONDS)


def routed(
    urls: list[str],
    test: Callable[[Router], Awaitable[None]],
    *,
    affinity: bool = True,
    silence_seconds: float | None = None,
    fallbacks: frozenset[str] = frozenset(),
) -> Router:
    """Run a test with a router of these replicas; ties go to the first."""
    made: list[Router] = []

    async def run() -> None:
        async with StreamingClient(urls[0]) as client:
            pools = [
                ReplicaPool("short", frozenset(urls[1:]), 100),
                ReplicaPool("any", frozenset(urls[:1])),
            ]
            settings = RoutingSettings(
                affinity=affinity, silence_seconds=silence_seconds, fallbacks=fallbacks
            )
            router = Router(client, urls, {"pooled": pools}, settings, draw=lambda: 0.0)
            made.append(router)
            await test(router)

    asyncio.run(run())
    return made[0]


async def ask(router: Router, model: str = "speller", *, work: float = 5.0) -> tuple[str, str]:
    """The whole text, and the replica that ended it."""
    async with router.choose(model, work=work) as placement:
        text = "".join([chunk.text async for chunk in placement.stream("72", GREEDY)])
        return text, placement.url


def test_requests_are_counted_while_they_last() -> None:
    """Whatever their end is; the next one goes where there are fewer."""
    with serving(Replica(), Replica()) as urls:

        async def test(router: Router) -> None:
            async with router.choose("speller", work=9.0) as first:
                assert router.replicas[first.url].work == 9.0
                async with router.choose("speller") as second:
                    assert {first.url, second.url} == set(urls)
                stream = first.stream("72", GREEDY)
                async with aclosing(stream) as chunks:
                    async for _ in chunks:
                        break

        router = routed(urls, test)
    assert [each.in_flight for each in router.replicas.values()] == [0, 0]
    assert [each.work for each in router.replicas.values()] == [0.0, 0.0]


def test_a_broken_answer_goes_on_at_another_replica_which_then_has_it() -> None:
    """And the broken one is left out, until it says that it is ready."""
    with serving(Replica(2, vanish), Replica()) as urls:

        async def test(router: Router) -> None:
            text, url = await ask(router)
            assert (text, url) == (TEXT, urls[1])
            broken = router.replicas[urls[0]]
            assert not broken.ready
            assert broken.in_flight == 0
            assert (await ask(router))[1] == urls[1]

        routed(urls, test)


def test_a_dead_replica_costs_nothing_but_a_try() -> None:
    """Nobody listens there; with all of them dead each is tried once, and that is an error."""
    with serving(Replica()) as urls:

        async def one(router: Router) -> None:
            assert await ask(router) == (TEXT, urls[0])

        routed([NOBODY, *urls], one)

    async def none(router: Router) -> None:
        with pytest.raises(ServerError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
            await ask(router)

    router = routed([NOBODY, "127.0.0.1:2"], none)
    assert [each.failures for each in router.replicas.values()] == [1, 0]


def test_a_full_queue_is_left_for_another_one() -> None:
    """Each is tried once; a replica that is busy is not broken."""
    with serving(Full(), Replica()) as urls:

        async def one(router: Router) -> None:
            assert await ask(router) == (TEXT, urls[1])
            assert router.replicas[urls[0]].ready

        routed(urls, one)
    with serving(Full(), Full()) as urls:

        async def none(router: Router) -> None:
            with pytest.raises(ServerBusyError):
                await ask(router)

        routed(urls, none)


def test_the_other_release_is_asked_only_once_its_own_is_gone() -> None:
    """An answer amid its tokens goes on there; when its own is ready again, requests return."""
    with serving(Replica(2, vanish), Replica()) as urls:

        async def test(router: Router) -> None:
            own, other = (router.replicas[url] for url in urls)
            assert (router.primary_count, own.fallback, other.fallback) == (1, False, True)
            for _ in range(5):
                own.enter("speller", 0)  # however busy it is
            assert await ask(router) == (TEXT, urls[1])
            assert not own.ready
            async with router.choose("speller") as placement:
                assert (placement.url, placement.reason) == (urls[1], "fallback")
            own.set_ready(ready=True, now=router.now() + 60)
            async with router.choose("speller") as placement:
                assert placement.url == urls[0]

        routed(urls, test, fallbacks=frozenset(urls[1:]))


def test_a_full_queue_is_no_reason_to_ask_another_release() -> None:
    """Its users are told to come back, as without one."""
    with serving(Full(), Replica()) as urls:

        async def test(router: Router) -> None:
            with pytest.raises(ServerBusyError):
                await ask(router)

        routed(urls, test, fallbacks=frozenset(urls[1:]))


def test_short_and_long_requests_have_pools_of_their_own() -> None:
    """Only of the model that has them."""
    with serving(Replica(), Replica()) as urls:

        async def test(router: Router) -> None:
            assert (await ask(router, "pooled", work=50))[1] == urls[1]
            assert (await ask(router, "pooled", work=500))[1] == urls[0]
            async with router.choose("speller") as one, router.choose("speller") as other:
                assert {one.url, other.url} == set(urls)

        routed(urls, test)


def test_equal_beginnings_meet_where_load_allows() -> None:
    """Switched off, they do not."""
    prompt = b"once upon a time " * 40

    async def places(router: Router) -> list[str]:
        found = []
        async with router.choose("speller") as holding:  # the first replica has one request more
            for _ in range(2):
                async with router.choose("speller", prompt=prompt) as placement:
                    found.append(placement.url)
            router.replicas[found[-1]].enter("speller", 0)
            async with router.choose("speller", prompt=prompt) as placement:
                found.append(placement.url)
            found.append(holding.url)
        return found

    async def on(router: Router) -> None:
        assert await places(router) == ["127.0.0.1:2", "127.0.0.1:2", "127.0.0.1:2", NOBODY]

    async def off(router: Router) -> None:
        assert await places(router) == ["127.0.0.1:2", "127.0.0.1:2", NOBODY, NOBODY]

    routed([NOBODY, "127.0.0.1:2"], on)
    routed([NOBODY, "127.0.0.1:2"], off, affinity=False)


def test_replicas_come_and_go() -> None:
    """A request on one that has gone goes on to its end."""
    with serving(Replica(), Replica()) as urls:

        async def test(router: Router) -> None:
            async with router.choose("speller") as placement:
                router.set_replicas({urls[1]: "triton:8001"})
                text = [chunk.text async for chunk in placement.stream("72", GREEDY)]
                assert "".join(text) == TEXT
            assert (await ask(router))[1] == urls[1]

        routed(urls[:1], test)


@pytest.mark.parametrize("tokens", [0, 2])
def test_an_answer_leaves_a_replica_that_has_fallen_silent(tokens: int) -> None:
    """For another one, which completes it; the silent one is left out, whatever it says."""
    silent = Replica(tokens, hang)
    with serving(silent, Replica()) as urls:

        async def test(router: Router) -> None:
            assert await ask(router) == (TEXT, urls[1])
            left = router.replicas[urls[0]]
            left.set_ready(ready=True, now=router.now() + BUSY_SECONDS / 2)
            assert not left.ready
            assert left.in_flight == 0

        routed(urls, test, silence_seconds=BUSY_SECONDS)
    assert silent.cancelled.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("count", [1, 2])
def test_an_answer_fails_where_all_are_silent(count: int) -> None:
    """Each is tried once, whether the answer has begun or not."""
    for tokens in (0, 2):
        replicas = [Replica(tokens, hang) for _ in range(count)]
        with serving(*replicas) as urls:

            async def test(router: Router) -> None:
                with pytest.raises(ServerError, match=r"sent no response for \d s"):
                    await ask(router)

            routed(urls, test, silence_seconds=0.4)
        assert [len(replica.requests) for replica in replicas] == [1] * count


def test_an_answer_waits_behind_others_that_come() -> None:
    """What is queued at a busy replica is not lost: it says something, though not of this one."""
    with serving(Replica()) as urls:

        async def test(router: Router) -> None:
            async with router.choose("speller") as placement:
                replica = router.replicas[urls[0]]
                replica.last_chunk_at = router.now()
                assert not placement.should_leave(0, 5.0)
                assert placement.should_leave(1, 5.0)
                replica.last_chunk_at -= 5.0
                assert placement.should_leave(0, 5.0)

        routed(urls, test, silence_seconds=5.0)


def test_a_slow_reader_makes_nobody_silent() -> None:
    """Only the time counts in which the server is waited for."""
    with serving(Replica(), Replica()) as urls:

        async def test(router: Router) -> None:
            async with router.choose("speller") as placement:
                chunks = []
                async for chunk in placement.stream("72", GREEDY):
                    chunks.append(chunk)
                    if len(chunks) == 1:
                        await asyncio.sleep(1.5 * BUSY_SECONDS)
                assert placement.url == urls[0]
            assert "".join(chunk.text for chunk in chunks) == TEXT

        routed(urls, test, silence_seconds=BUSY_SECONDS)


def test_who_cancels_a_silent_answer_is_heard() -> None:
    """A client that leaves is no silence of the server's."""
    with serving(Replica(0, hang)) as urls:

        async def test(router: Router) -> None:
            asking = asyncio.create_task(ask(router))
            await asyncio.sleep(0.1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        routed(urls, test, silence_seconds=30.0)
