# SPDX-License-Identifier: Apache-2.0
"""Answers that go on at another endpoint, against gRPC servers that break off on purpose."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import RequestRejectedError, ServerError, TritonctlError, UsageError
from tritonctl.frontend.upstream import StreamingClient
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import DEFAULT_QUEUEING, Generation, SamplingParameters
from tritonctl.protocol.resuming import ResumableAnswer, Route
from tritonctl.runtimes.ports import reserved_ports

pytestmark = pytest.mark.timed

WORDS = ["se", "ven", " ty", "-", "two"]
PATIENCE_SECONDS = 50.0
NOBODY = "127.0.0.1:1"
PROMPT_TOKENS = 3


@dataclass
class Replica(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers WORDS, token n being word n; `fail` is called when `breaks_after` tokens are sent."""

    breaks_after: int = len(WORDS)
    fail: Callable[[Any], None] | None = None
    prompt_tokens: int = PROMPT_TOKENS
    version: str = "1"
    url: str = ""
    requests: list[Any] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """The words that the client does not have yet."""
        context.add_callback(self.cancelled.set)
        request = next(requests)
        self.requests.append(request)
        have = len(_resumed(request))
        for number in range(have, len(WORDS)):
            if number - have == self.breaks_after:
                break
            yield self._response(number)
        if self.fail is not None:
            self.fail(context)
            return
        final = service_pb2.ModelStreamInferResponse()
        final.infer_response.parameters["triton_final_response"].bool_param = True
        yield final

    def _response(self, number: int) -> Any:
        response = service_pb2.ModelStreamInferResponse()
        reason = b"stop" if number + 1 == len(WORDS) else b""
        word = WORDS[number].encode()
        for name, raw in (
            ("text_output", struct.pack("<I", len(word)) + word),
            ("num_input_tokens", struct.pack("<i", self.prompt_tokens)),
            ("num_output_tokens", struct.pack("<i", number + 1)),
            ("finish_reason", struct.pack("<I", len(reason)) + reason),
            ("cum_log_probs", struct.pack("<f", -1.0 - number + self._first)),
            ("output_ids", struct.pack("<i", number)),
        ):
            response.infer_response.outputs.add(name=name)
            response.infer_response.raw_output_contents.append(raw)
        response.infer_response.model_version = self.version
        return response

    @property
    def _first(self) -> int:
        """A server knows nothing of what another one made."""
        return len(_resumed(self.requests[-1]))


def _resumed(request: Any) -> tuple[int, ...]:
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.name == "resume_ids":
            return struct.unpack(f"<{tensor.shape[1]}i", raw)
    return ()


def abort(code: str, words: str) -> Callable[[Any], None]:
    """Ends the call with that gRPC status."""
    return lambda context: context.abort(grpc.StatusCode[code], words)


vanish = abort("UNAVAILABLE", "Socket closed")


@contextmanager
def serving(*replicas: Replica, port: int = 0) -> Iterator[list[str]]:
    """Each on a port of its own, or the only one on that port."""
    with ExitStack() as stack:
        for replica in replicas:
            server = grpc.server(ThreadPoolExecutor(max_workers=4))
            service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(replica, server)
            replica.url = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
            server.start()
            stack.callback(_stop, server)
        yield [replica.url for replica in replicas]


def _stop(server: grpc.Server) -> None:
    server.stop(0).wait()


def _sync(urls: list[str], sampling: SamplingParameters, **options: Any) -> Generation:
    timeout = options.pop("timeout", None)
    with TritonClient(urls[0], resume_on=urls[1:], **options) as client:
        return client.generate("speller", "72", sampling, timeout=timeout)


def _async(
    urls: list[str],
    sampling: SamplingParameters,
    kind: type[AsyncTritonClient] = AsyncTritonClient,
    **options: Any,
) -> Generation:
    timeout = options.pop("timeout", None)

    async def run() -> Generation:
        async with kind(urls[0], resume_on=urls[1:], **options) as client:
            return await client.generate("speller", "72", sampling, timeout=timeout)

    return asyncio.run(run())


def _frontends(urls: list[str], sampling: SamplingParameters, **options: Any) -> Generation:
    return _async(urls, sampling, StreamingClient, **options)


every = pytest.mark.parametrize("ask", [_sync, _async, _frontends])
Ask = Callable[..., Generation]
GREEDY = SamplingParameters()


BREAKS: dict[str, Callable[[Any], None]] = {
    "connection": vanish,
    "reset": abort("INTERNAL", "Received RST_STREAM with error code 2"),
    "removed": abort("UNKNOWN", "Stream removed"),
    "early end": lambda _: None,
}


@every
@pytest.mark.parametrize("fail", BREAKS)
def test_a_broken_answer_goes_on(ask: Ask, fail: str) -> None:
    """Whatever the break looks like: the ids go along, the rest comes, nothing twice."""
    first, second = Replica(2, BREAKS[fail]), Replica()
    with serving(first, second) as urls:
        whole = ask(urls, GREEDY)
    assert (whole.text, whole.num_output_tokens, whole.finish_reason) == ("seven ty-two", 5, "stop")
    assert (whole.num_input_tokens, whole.resumes) == (PROMPT_TOKENS, 1)
    assert (_resumed(first.requests[0]), _resumed(second.requests[0])) == ((), (0, 1))
    assert [tensor.name for tensor in second.requests[0].inputs][:2] == ["text_input", "stream"]


@every
def test_the_other_release_learns_which_text_the_ids_are(ask: Ask) -> None:
    """By a digest, so that it can refuse ids of another tokenizer; who answered is told."""
    first, second = Replica(2, vanish, version="3"), Replica(version="2")
    with serving(first, second) as urls:
        whole = ask(urls, GREEDY)
    assert (whole.text, whole.model_versions) == ("seven ty-two", ("3", "2"))
    told = [dict(replica.requests[0].parameters) for replica in (first, second)]
    assert "resume_text_sha256" not in told[0]
    digest = hashlib.sha256(b"seven").hexdigest()
    assert told[1]["resume_text_sha256"].string_param == digest


@every
def test_who_asks_is_told_with_each_part(ask: Ask) -> None:
    """A gateway tells users apart by it; what gRPC could not send is refused at once."""
    seen: list[str] = []

    class Listening(Replica):
        def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
            seen.append(dict(context.invocation_metadata())["x-user-id"])
            return super().ModelStreamInfer(requests, context)

    with serving(Listening(2, vanish), Listening()) as urls:
        ask(urls, GREEDY, headers={"X-User-Id": "alice"})
    assert seen == ["alice", "alice"]
    for bad in ({"x user": "a"}, {"grpc-timeout": "1S"}, {"key-bin": "a"}, {"x-user-id": "a\nb"}):
        with pytest.raises(UsageError, match="cannot be sent"):
            ask([NOBODY], GREEDY, headers=bad)


@every
def test_round_the_circle(ask: Ask) -> None:
    """Two servers take turns, as often as is allowed: the second may be back by then."""
    first, second = Replica(2, vanish), Replica(1, vanish)
    with serving(first, second) as urls:
        whole = ask(urls, GREEDY, max_resumes=3)
        assert (whole.text, whole.resumes) == ("seven ty-two", 2)
        with pytest.raises(ServerError, match=r"had 3 tokens .* 1 times \(max_resumes 1\)"):
            ask(urls, GREEDY, max_resumes=1)
    assert [_resumed(request) for request in first.requests] == [(), (0, 1, 2), ()]


@every
def test_after_the_last_allowed_endpoint(ask: Ask) -> None:
    """The first problem, then what else was tried, and where."""
    with serving(Replica(2, vanish)) as urls, pytest.raises(ServerError) as caught:
        ask([*urls, NOBODY, "127.0.0.1:2"], GREEDY)
    problem = caught.value.problem
    assert problem.startswith(f"no answer from Triton at {urls[0]}: UNAVAILABLE: Socket closed; ")
    assert problem.index(NOBODY) < problem.index("127.0.0.1:2")
    assert "The answer had 2 tokens and was continued 2 times (max_resumes 2)" in problem


@every
@pytest.mark.parametrize("options", [{"max_resumes": 0}, {}])
def test_without_permission_the_break_is_the_error(ask: Ask, options: dict[str, int]) -> None:
    """As ever for a client of one endpoint."""
    first, second = Replica(2, vanish), Replica()
    with (
        serving(first, second) as urls,
        pytest.raises(ServerError, match=r"UNAVAILABLE: Socket closed$"),
    ):
        ask(urls if options else urls[:1], GREEDY, **options)
    assert second.requests == []


@every
def test_a_server_that_is_down_at_first(ask: Ask) -> None:
    """Nothing had come: the request goes out as it was."""
    second = Replica()
    with serving(second) as urls:
        whole = ask([NOBODY, *urls], GREEDY)
    assert (whole.text, whole.resumes) == ("seven ty-two", 1)
    assert _resumed(second.requests[0]) == ()


@every
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "INTERNAL", "CANCELLED", "UNIMPLEMENTED"])
def test_an_answer_that_failed_is_not_repeated(ask: Ask, code: str) -> None:
    """The request's own fault, or the engine's word on it: no other server is bothered."""
    first, second = Replica(2, abort(code, "as scripted")), Replica()
    with (
        serving(first, second) as urls,
        pytest.raises((ServerError, RequestRejectedError, asyncio.CancelledError)),
    ):
        ask(urls, GREEDY)
    assert second.requests == []


@every
def test_a_late_answer_is_not_continued(ask: Ask) -> None:
    """One deadline for all of it."""
    first, second = Replica(2), Replica()
    first.fail = lambda _: (first.cancelled.wait(PATIENCE_SECONDS), None)[1]
    with serving(first, second) as urls, pytest.raises(ServerError, match="did not answer in time"):
        ask(urls, GREEDY, timeout=0.5)
    assert second.requests == []


def test_the_deadline_holds_at_the_next_endpoint() -> None:
    """What is left of it; the error tells both."""
    route = Route.of(NOBODY, "127.0.0.1:2", None)
    answer = ResumableAnswer(route, "speller", "72", GREEDY, DEFAULT_QUEUEING, timeout=0.0)
    answer.on_break(ServerError("it fell", remedy=""), resumable=True)
    assert (answer.url, answer.seconds_left, answer.complete) == ("127.0.0.1:2", 0.0, False)
    with pytest.raises(ServerError, match="it fell; then too late"):
        answer.on_break(ServerError("too late", remedy=""), resumable=False)


@pytest.mark.parametrize(("urls", "all_failed"), [([NOBODY] * 9, 1), ([NOBODY, "b:1"] * 5, 2)])
def test_pauses_once_all_have_failed(urls: list[str], all_failed: int) -> None:
    """Longer each round, up to a second; none after a break amid an answer."""
    route = Route.of(urls[0], urls[1:], 50)
    answer = ResumableAnswer(route, "speller", "72", GREEDY, DEFAULT_QUEUEING, timeout=None)
    assert answer.pause == 0
    pauses = []
    for _ in range(7 * all_failed):
        answer.on_break(ServerError("gone", remedy=""), resumable=True)
        pauses.append(answer.pause)
    assert all(pause == 0 for i, pause in enumerate(pauses) if (i + 1) % all_failed)
    in_full = pauses[all_failed - 1 :: all_failed]
    assert in_full == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1])
    answer.read(Replica(requests=[answer.request()])._response(0))
    answer.on_break(ServerError("gone", remedy=""), resumable=True)
    assert answer.pause == 0
    with pytest.raises(ServerError, match=r"^gone \(\d+ times\)\. The answer had 1 tokens"):
        answer.on_break(ServerError("gone", remedy=""), resumable=False)


def test_no_pause_is_longer_than_the_timeout() -> None:
    """Then it is told that it is too late."""
    route = Route.of(NOBODY, NOBODY, 50)
    answer = ResumableAnswer(route, "speller", "72", GREEDY, DEFAULT_QUEUEING, timeout=0.0)
    answer.on_break(ServerError("gone", remedy=""), resumable=True)
    assert answer.pause == 0


@every
def test_patience_for_one_endpoint_that_comes_back(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused connections cost no more than a handful of resumes: it is back after the second."""
    refused: list[TritonctlError] = []
    broken = ResumableAnswer.on_break

    def count(answer: ResumableAnswer, error: TritonctlError, *, resumable: bool) -> None:
        refused.append(error)
        if len(refused) == 2:
            running.enter_context(serving(Replica(), port=port))
        broken(answer, error, resumable=resumable)

    monkeypatch.setattr(ResumableAnswer, "on_break", count)
    with reserved_ports("127.0.0.1", {"port": 0}) as (port,), ExitStack() as running:
        urls = [f"127.0.0.1:{port}"] * 2
        whole = ask(urls, GREEDY, max_resumes=10, timeout=PATIENCE_SECONDS)
    assert whole.text == "seven ty-two"
    assert 2 <= whole.resumes <= 10


@every
def test_another_model_is_noticed(ask: Ask) -> None:
    """A prompt of another length: its ids would mean something else there."""
    first, second = Replica(2, vanish), Replica(prompt_tokens=7)
    with (
        serving(first, second) as urls,
        pytest.raises(
            ServerError, match=r"serves another model: .* 7 tokens at this endpoint and 3 at"
        ),
    ):
        ask(urls, GREEDY)


@every
def test_a_refused_continuation_tells_of_the_break(ask: Ask) -> None:
    """The request was good at the first server; refused from the start it is the client's fault."""

    def refuse(*_: Any) -> Iterator[Any]:
        yield service_pb2.ModelStreamInferResponse(error_message="no such tensor: resume_ids")

    first, second = Replica(2, vanish), Replica()
    second.ModelStreamInfer = refuse  # type: ignore[assignment,method-assign]
    with serving(first, second) as urls:
        with pytest.raises(ServerError, match=r"Socket closed; then Triton refused .* resume_ids"):
            ask(urls, GREEDY)
        with pytest.raises(RequestRejectedError, match="no such tensor"):
            ask([NOBODY, urls[1]], GREEDY)


@every
def test_only_the_empty_final_response_was_missing(ask: Ask) -> None:
    """The answer is whole: nobody needs to continue it."""
    first, second = Replica(len(WORDS), vanish), Replica()
    with serving(first, second) as urls:
        whole = ask(urls, GREEDY)
    assert (whole.text, whole.resumes, second.requests) == ("seven ty-two", 0, [])


@every
def test_log_probabilities_add_up(ask: Ask) -> None:
    """Each server sums up what it made itself."""
    with serving(Replica(2, vanish), Replica(2, vanish), Replica()) as urls:
        whole = ask(urls, SamplingParameters(return_log_probs=True))
    assert (whole.cum_log_prob, whole.resumes) == (-5.0, 2)


@every
def test_the_pause_counts(ask: Ask) -> None:
    """Timing is that of the caller: from the first request, the broken connection included."""
    first, second = Replica(2), Replica()
    pause = threading.Event()
    first.fail = lambda context: (pause.wait(0.3), vanish(context))[1]
    with serving(first, second) as urls:
        timing = ask(urls, GREEDY).timing
    assert timing.e2e_ms >= 300
    assert timing.itl_ms is not None
    assert timing.itl_ms >= 300 / len(WORDS)


def test_leaving_the_loop_does_not_move_on() -> None:
    """Cancellation by the caller ends the answer, wherever it is."""
    first, second, third = Replica(2, vanish), Replica(1), Replica()
    second.fail = lambda _: (second.cancelled.wait(PATIENCE_SECONDS), None)[1]

    async def leave(urls: list[str]) -> None:
        async with (
            AsyncTritonClient(urls[0], resume_on=urls[1:]) as client,
            aclosing(client.stream("speller", "72")) as chunks,
        ):
            async for chunk in chunks:
                if chunk.resumes:
                    return

    with serving(first, second, third) as urls:
        with TritonClient(urls[0], resume_on=urls[1:]) as client:
            for chunk in client.stream("speller", "72"):
                if chunk.resumes:
                    break
        assert second.cancelled.wait(PATIENCE_SECONDS)
        second.cancelled.clear()
        asyncio.run(leave(urls))
        assert second.cancelled.wait(PATIENCE_SECONDS)
    assert third.requests == []


@pytest.mark.parametrize(("further", "most"), [([], 1), ([NOBODY], -1)])
def test_impossible_settings(further: list[str], most: int) -> None:
    """Told at once, not when a server dies."""
    with pytest.raises(UsageError, match="max_resumes is"):
        TritonClient(NOBODY, resume_on=further, max_resumes=most)


def test_one_endpoint_may_be_given_bare() -> None:
    """A string is one endpoint, not a list of characters."""
    with serving(Replica()) as urls, TritonClient(NOBODY, resume_on=urls[0]) as client:
        assert client.generate("speller", "72").text == "seven ty-two"
