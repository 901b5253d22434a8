# SPDX-License-Identifier: Apache-2.0
"""The shadower: three questions for each copy, bounds, and what is written down of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fakes.task_server import BAD, task_server
from tests.fakes.text_server import MODEL, text_server
from tritonctl.protocol.generation import SamplingParameters, generation_request
from tritonctl.protocol.tensors import infer_request
from tritonctl.rollout.metrics import Distances
from tritonctl.rollout.shadow.answers import VersionClient
from tritonctl.rollout.shadow.capacity_probe import BUSY, FULL, REFUSED, SILENT, CapacityProbe
from tritonctl.rollout.shadow.comparison_log import (
    COUNTS,
    LINES,
    PROMPTS,
    ComparisonRecord,
    LogTail,
    read_comparison_records,
)
from tritonctl.rollout.shadow.config import ShadowConfig, ShadowedServer
from tritonctl.rollout.shadow.listening import RequestCopy
from tritonctl.rollout.shadow.shadower import Shadower

GRPC = {"content-type": "application/grpc"}
IDLE = ""
PATIENCE_SECONDS = 10.0


class Page:
    """The metrics of a server, as a test wants them."""

    def __init__(self, text: str | None = IDLE) -> None:
        self.text = text
        self.read = 0

    def __call__(self, url: str) -> str:
        """None: no answer."""
        self.read += 1
        if self.text is None:
            raise OSError(url)
        return self.text


def waiting(count: int) -> str:
    """So many requests wait."""
    return f'nv_inference_pending_request_count{{model="m"}} {count}\n'


def active(count: int) -> str:
    """So many streams run."""
    return f'tritonctl_active_streams{{model="m"}} {count}\n'


def config(folder: Path, stable: str, candidate: str, **more: Any) -> ShadowConfig:
    """Of two servers."""
    return ShadowConfig(
        socket=folder / "s",
        folder=folder,
        stable=ShadowedServer(url=stable, metrics_url=""),
        candidate=ShadowedServer(url=candidate, metrics_url=""),
        models=(MODEL, "encoder", "classifier", "reranker"),
        **{"patience_seconds": 0.3, "seconds": 5.0, **more},
    )


@asynccontextmanager
async def running(
    settings: ShadowConfig, pages: tuple[Page, Page] | None = None
) -> AsyncIterator[Shadower]:
    """A shadower at work."""
    stable = VersionClient(settings.stable.endpoint, settings.seconds)
    candidate = VersionClient(settings.candidate.endpoint, settings.seconds)
    rooms = [CapacityProbe("http://x", fetch=page) for page in pages or (Page(), Page())]
    shadower = Shadower(
        settings,
        stable=stable,
        candidate=candidate,
        probes=(rooms[0], rooms[1]),
        random_source=random.Random(1),  # noqa: S311 - a seeded experiment
    )
    task = asyncio.create_task(shadower.run())
    try:
        yield shadower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stable.close()
        await candidate.close()


async def until_done(shadower: Shadower, copies: int) -> None:
    """All are compared or left."""
    counts = shadower.counts
    async with asyncio.timeout(PATIENCE_SECONDS):
        while counts.copies < copies or counts.compared + sum(counts.left.values()) < copies:
            await asyncio.sleep(0.005)


def text(prompt: str, **sampling: Any) -> RequestCopy:
    """A copy of a request for a text."""
    request = generation_request(MODEL, prompt, SamplingParameters(**{"max_tokens": 5, **sampling}))
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    return RequestCopy(path, GRPC, request.SerializeToString())


def rows(model: str, *texts: bytes, **more: list[bytes]) -> RequestCopy:
    """A copy of a request with rows."""

    inputs = {"text_input": np.array([[one] for one in texts], dtype=object)}
    inputs |= {
        name: np.array([[one] for one in given], dtype=object) for name, given in more.items()
    }
    content = infer_request(model, inputs, []).SerializeToString()
    return RequestCopy("/inference.GRPCInferenceService/ModelInfer", GRPC, content)


def shadowed(
    settings: ShadowConfig, copies: list[RequestCopy], pages: tuple[Page, Page] | None = None
) -> tuple[list[ComparisonRecord], Shadower]:
    """What is found of these copies."""

    async def go() -> Shadower:
        async with running(settings, pages) as shadower:
            for copy in copies:
                shadower.enqueue(copy)
            await until_done(shadower, len(copies))
            return shadower

    shadower = asyncio.run(go())
    return list(read_comparison_records(settings.folder)), shadower


@contextmanager
def texts() -> Iterator[tuple[Any, Any]]:
    """Two versions of a model that generates text."""
    with text_server() as stable, text_server() as candidate:
        yield stable, candidate


def test_versions_that_differ_in_a_token(tmp_path: Path) -> None:
    """Stable is asked twice, the candidate once, all with one seed; nothing of the text is kept."""
    with texts() as (stable, candidate):
        candidate.shift = 7
        settings = config(tmp_path, stable.url, candidate.url)
        found, _ = shadowed(settings, [text("a secret", temperature=0.5)] * 3)
        assert [len(stable.requests), len(candidate.requests)] == [6, 3]
        seeds = [request.raw_input_contents[-2] for request in stable.requests]
        assert len(set(seeds)) == 3
    assert [one.measurement.note for one in found] == ["token 3; 5 and 5 tokens"] * 3
    assert [(one.model, one.task) for one in found] == [(MODEL, "text_generation")] * 3
    assert found[0].measurement.figures == {"first_token": (None, 2), "log_probs": (0.0, 0.0)}
    assert found[0].measurement.times is not None
    assert all(ms is not None and ms > 0 for ms in found[0].measurement.times.first)
    assert LogTail(tmp_path).new_distances() == [Distances(0.0, 1.0)] * 3
    assert "secret" not in (tmp_path / LINES).read_text(encoding="utf-8")
    assert not (tmp_path / PROMPTS).exists()


def test_versions_that_are_alike(tmp_path: Path) -> None:
    """No noise, no difference, whatever the task."""
    with task_server() as stable, task_server() as candidate:
        copies = [
            rows("encoder", b"one"),
            rows("encoder", b"one", b"three"),
            rows("classifier", b"one", b"three"),
            rows("reranker", b"q", b"qq", b"q q q", query=[b"q"] * 3),
            rows("encoder", BAD),
        ]
        found, _ = shadowed(config(tmp_path, stable.url, candidate.url), copies)
        assert len(stable.requests) == 2 * len(candidate.requests) == 10
    assert [(one.measurement.noise, one.measurement.candidate) for one in found] == [(0, 0)] * 5
    assert {one.task for one in found} == {"embedding", "classification", "rerank"}


def test_vectors_and_orders_that_differ(tmp_path: Path) -> None:
    """By the cosine, over the rows of a request."""
    with task_server() as stable, task_server() as candidate:
        candidate.factor = -40.0
        copies = [rows("encoder", b"one", b"three"), rows("encoder", b"one")]
        found, _ = shadowed(config(tmp_path, stable.url, candidate.url, in_flight=1), copies)
    assert [one.measurement.differs for one in found] == [(False, True)] * 2
    assert found[0].measurement.note == "2 of 2 rows"
    assert found[1].measurement.figures["cosine"][0] == pytest.approx(1)


def test_a_candidate_that_refuses_what_stable_answers(tmp_path: Path) -> None:
    """Is as far away as can be; so is one that hangs."""

    def refuse(_: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")

    with task_server() as stable, task_server() as candidate:
        candidate.before = refuse
        settings = config(tmp_path, stable.url, candidate.url, seconds=0.3)
        found, _ = shadowed(settings, [rows("encoder", b"one")])
        assert found[0].measurement.note == "candidate: refused"
        candidate.before = lambda *_: time.sleep(0.6)
        found, _ = shadowed(settings, [rows("encoder", b"one")])
        assert found[1].measurement.note == "candidate: no answer in time"
    assert [(one.measurement.noise, one.measurement.candidate) for one in found] == [(0, 1)] * 2


def test_a_server_that_is_full_or_gone(tmp_path: Path) -> None:
    """No evidence either way, and it is left alone for a while."""

    def busy(_: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")

    with task_server() as stable, task_server() as candidate:
        candidate.before = busy
        settings = config(tmp_path, stable.url, candidate.url, in_flight=1)
        found, shadower = shadowed(settings, [rows("encoder", b"one")] * 2)
        assert len(candidate.requests) == 1
    assert found == []
    assert shadower.counts.left == {
        "a server was full": 1,
        f"no server had capacity in time: candidate: {REFUSED}": 1,
    }
    with task_server() as stable:
        settings = config(tmp_path, stable.url, "127.0.0.1:1")
        found, shadower = shadowed(settings, [rows("encoder", b"one")])
    assert (found, shadower.counts.left) == ([], {"a server did not answer": 1})


@pytest.mark.parametrize(("page", "why"), [(waiting(1), FULL), (active(4), BUSY), (None, SILENT)])
def test_nothing_is_asked_while_servers_are_full(
    tmp_path: Path, page: str | None, why: str
) -> None:
    """By their own metrics; what is not known is full."""
    with texts() as (stable, candidate):
        settings = config(tmp_path, stable.url, candidate.url)
        found, shadower = shadowed(settings, [text("x")], (Page(), Page(page)))
        assert (stable.requests, candidate.requests) == ([], [])
    assert found == []
    assert shadower.counts.left == {f"no server had capacity in time: candidate: {why}": 1}


def test_a_page_is_believed_for_half_a_second() -> None:
    """And room is back as soon as it says so."""
    now, page = [0.0], Page(waiting(3))
    room = CapacityProbe("http://x", clock=lambda: now[0], fetch=page)

    async def lacking() -> str:
        return await room.missing_capacity(4)

    assert asyncio.run(lacking()) == FULL
    page.text = active(3)
    assert (asyncio.run(lacking()), page.read) == (FULL, 1)
    now[0] = 0.6
    assert (asyncio.run(lacking()), page.read) == ("", 2)
    room.record_refusal()
    assert asyncio.run(lacking()) == REFUSED
    now[0] = 6.0
    assert asyncio.run(lacking()) == ""


def test_bounds_of_the_queue(tmp_path: Path) -> None:
    """What is beyond it is dropped and counted, at once."""

    async def go() -> Shadower:
        settings = config(tmp_path, "127.0.0.1:1", "127.0.0.1:1", waiting=2)
        async with running(settings, (Page(None), Page(None))) as shadower:
            shadower.enqueue(RequestCopy("/v2/models/m/ready", {}, b""))
            for _ in range(5):
                shadower.enqueue(text("x"))
            await until_done(shadower, 5)
            return shadower

    counts = asyncio.run(go()).counts
    assert (counts.copies, counts.compared) == (5, 0)
    assert counts.left["the queue was full"] == 3


def test_models_that_are_not_public(tmp_path: Path) -> None:
    """Are nobody's to ask."""
    settings = config(tmp_path, "127.0.0.1:1", "127.0.0.1:1")
    _, shadower = shadowed(settings, [rows("plain", b"x"), RequestCopy("/x", GRPC, None)])
    assert shadower.counts.left == {
        "not a public model": 1,
        "too long, or compressed": 1,
    }


def test_prompts_are_kept_if_asked_for(tmp_path: Path) -> None:
    """In a file that only its owner reads, in the form of a file of prompts."""
    with texts() as (stable, candidate):
        candidate.shift = 1
        settings = config(tmp_path, stable.url, candidate.url, keep_prompts=True)
        shadowed(settings, [text("a prompt")])
    file = tmp_path / PROMPTS
    assert file.stat().st_mode & 0o777 == 0o600
    (record,) = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert record["text_input"] == "a prompt"
    assert record["answers"]["first"] == record["answers"]["second"] == " 8 9 10 11 12"
    assert record["answers"]["candidate"] == " 8 9 11 11 12"
    assert "a prompt" not in (tmp_path / LINES).read_text(encoding="utf-8")


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    """A torn line waits for its end; one that is none is passed over."""
    with texts() as (stable, candidate):
        found, _ = shadowed(config(tmp_path, stable.url, candidate.url), [text("x")] * 2)
    news = LogTail(tmp_path)
    assert len(news.new_distances()) == 2
    assert news.new_distances() == []
    file = tmp_path / LINES
    line = found[0].line()
    with file.open("a") as opened:
        opened.write(line[:20])
    assert news.new_distances() == []
    with file.open("a") as opened:
        opened.write(line[20:] + "nonsense\n" + '{"noise": 2}\n' + line)
    assert len(news.new_distances()) == 2
    assert len(LogTail(tmp_path, news.offset).new_distances()) == 0
    assert len(list(read_comparison_records(tmp_path))) == 4
    assert ComparisonRecord.of(line.encode()) == found[0]


def test_no_lines_yet(tmp_path: Path) -> None:
    """Nothing is found, and nothing fails."""
    assert LogTail(tmp_path).new_distances() == []
    assert list(read_comparison_records(tmp_path)) == []
    assert not (tmp_path / COUNTS).exists()


def test_a_mistake_of_ours_quotes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever an error says: the log has its kind and its place, the other questions go on."""

    def mistaken(*_: Any, **__: Any) -> Any:
        raise KeyError("a secret")

    with texts() as (stable, candidate):
        settings = config(tmp_path, stable.url, candidate.url)
        for name in ("question_of", "shadow_request"):
            with monkeypatch.context() as patch:
                patch.setattr(f"tritonctl.rollout.shadow.shadower.{name}", mistaken)
                _, shadower = shadowed(settings, [text("x")])
            assert shadower.counts.left == {"internal error": 1}
    assert caplog.text.count("a question failed: KeyError") == 2
    assert "in mistaken" in caplog.text
    assert "a secret" not in caplog.text.replace('raise KeyError("a secret")', "")
