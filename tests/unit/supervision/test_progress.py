# SPDX-License-Identifier: Apache-2.0
"""Models whose uptime stands still are frozen; those that are only late are not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tritonctl.supervision.progress import (
    FROZEN_SECONDS,
    ModelProgress,
    ProgressWatch,
    describe_change,
)
from tritonctl.supervision.readiness import Readiness

NO_SUCH_PID = 2**22 + 1


def line(model: str, seconds: float, *, process: int = 1, instance: str = "0") -> str:
    """An uptime as Triton publishes it."""
    labels = f'model="{model}",model_instance="{model}_{instance}",process="{process}",version="1"'
    return f"tritonctl_uptime_seconds_total{{{labels}}} {seconds:f}\n"


def test_a_model_is_frozen_after_five_seconds_and_back_at_its_next() -> None:
    """Each second counts for itself; others go on."""
    progress = ModelProgress()
    progress.update(line("a", 7) + line("b", 7), 100.0)
    progress.update(line("a", 7) + line("b", 9), 100.0 + FROZEN_SECONDS - 0.1)
    assert progress.frozen(100.0 + FROZEN_SECONDS - 0.1) == set()
    assert progress.frozen(100.0 + FROZEN_SECONDS) == {"a"}
    progress.update(line("a", 8) + line("b", 14), 106.0)
    assert progress.frozen(106.0) == set()


def test_one_of_two_instances_is_enough() -> None:
    """Triton gives it requests as before."""
    progress = ModelProgress()
    for now in (0.0, 6.0):
        progress.update(line("a", 7 + now, instance="0") + line("a", 7, instance="1"), now)
    assert progress.frozen(6.0) == {"a"}


def test_what_a_killed_process_leaves_behind_is_no_frozen_model() -> None:
    """A reload starts another process for the instance; or the process does not exist."""
    progress = ModelProgress()
    for now in (0.0, 6.0):
        progress.update(line("a", 7, process=1) + line("a", now, process=2) + line("b", 7), now)
    assert progress.frozen(6.0) == {"b"}
    assert progress.frozen(6.0, lambda process: process == "2") == set()


def test_a_model_that_is_unloaded_is_forgotten() -> None:
    """Its metrics are gone."""
    progress = ModelProgress()
    progress.update(line("a", 7), 0.0)
    progress.update("", 6.0)
    assert progress.frozen(6.0) == set()


@pytest.fixture
def page() -> list[str]:
    """What the server's metrics say."""
    return [line("m_engine", 1, process=os.getpid()) + line("old", 1, process=NO_SUCH_PID)]


@pytest.fixture
def metrics(page: list[str]) -> Iterator[str]:
    """URL of a server that is always ready."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page[0].encode())

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_readiness_follows_the_engine(metrics: str, page: list[str]) -> None:
    """503 while it stands still, 200 once it goes on; each change is told once."""
    now, changes = [0.0], list[set[str]]()
    watch = ProgressWatch(metrics, lambda frozen: changes.append(set(frozen)), clock=lambda: now[0])
    readiness = Readiness(metrics, makes_progress=watch.makes_progress)
    answers = []
    for seconds in (0.0, 4.0, 2.0, 2.0):
        now[0] += seconds
        watch.poll()
        answers.append(readiness.answer_probe())
    page[0] = line("m_engine", 2, process=os.getpid())
    watch.poll()
    assert [*answers, readiness.answer_probe()] == [True, True, False, False, True]
    assert changes == [{"m_engine"}, set()]
    assert describe_change({"b", "a"}).startswith("a, b: no progress for 5 s, so the server is not")


def test_a_server_that_does_not_answer_changes_nothing() -> None:
    """Its readiness probe fails by itself."""
    watch = ProgressWatch("http://127.0.0.1:1/metrics", print)
    watch.poll()
    assert watch.makes_progress()
