# SPDX-License-Identifier: Apache-2.0
"""`tritonctl smoke` against a real Triton: right models pass, each mistake fails its own check."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from tests.json_page import as_documented
from tests.server.plain_triton import PATIENCE, PlainTriton
from tests.server.smoke_models import DEAF, HEARS, RIGHT, WRONG, repository
from tests.unit.checks.repositories import put
from tritonctl.errors import UsageError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.run import SmokePlan, smoke_server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainTriton]:
    """All of the small models in one server."""
    folder = tmp_path_factory.mktemp("smoke")
    models = {**RIGHT, **WRONG, "hears": HEARS, "deaf": DEAF}
    put(folder / "models", repository(models))
    server = PlainTriton(folder / "models", folder / "log")
    yield server
    server.stop()


@pytest.fixture
def triton(request: pytest.FixtureRequest, plain: PlainTriton) -> PlainTriton:
    """It, alive."""
    return plain.ready(request.node)


def asked(triton: PlainTriton, model: str, seconds: float = 30.0) -> dict[str, SmokeOutcome]:
    plan = SmokePlan(Endpoint(triton.url), models=(model,), seconds=seconds)
    return {one.check: one for one in smoke_server(plan, Silent()).outcomes}


@pytest.mark.parametrize("model", RIGHT)
def test_right_models_pass(model: str, triton: PlainTriton) -> None:
    """Every check that looks at them does."""
    found = asked(triton, model)
    assert [one for one in found.values() if one.status == "fail"] == []
    assert found["answers"].status == "pass"


@pytest.mark.parametrize(
    ("model", "check", "seen"),
    [
        ("adds", "batch", "3 in one request"),
        ("adds", "batching", "requests per execution"),
        ("ragged", "batching", "requests per execution"),
        ("two_outputs", "each output", "2 outputs, each requested alone"),
        ("adds", "own answers", "8 at once, each answered as alone"),
        ("slow", "at once", "its instance runs them one after the other"),
        ("stream", "at once", "8 in "),
        ("sequence", "at once", "8 in "),
        ("bytes", "outputs", "as declared"),
        ("image", "answers", "LARGEST[3]"),
        ("optional", "optional inputs", "with B"),
        ("sequence", "sequence", "start, middle, end"),
        ("stream", "one final", "the last response"),
        ("stream", "order", "5 responses"),
        ("text", "order", "3 tokens in 3 responses"),
        ("text", "in one piece", "'one two three '"),
    ],
)
def test_what_is_looked_at(model: str, check: str, seen: str, triton: PlainTriton) -> None:
    """A check that passes has seen something."""
    found = asked(triton, model)[check]
    assert (found.status, seen in found.detail) == ("pass", True), found


@pytest.mark.parametrize(
    ("model", "check", "told"),
    [
        ("wrong_type", "outputs", "output OUTPUT is FP64, declared FP32"),
        ("missing_output", "outputs", "output MORE is missing"),
        ("wrong_shape", "outputs", "output OUTPUT has shape [1, 3], declared [1, 4]"),
        ("first_of_batch", "batch", "output OUTPUT has shape [1, 4], declared [3, 4]"),
        ("not_a_number", "numbers", "output OUTPUT holds NaN"),
        ("refuses", "answers", "no weights"),
        ("one_by_one", "batching", "batching should give"),
        ("first_output_alone", "each output", "MORE alone: "),
        ("feeds_a_step", "each output", "LAST alone: "),
        ("feeds_a_step", "each output", "tritonctl check --explain TC318"),
        ("exchanges", "own answers", "got the answer to another request"),
        ("one_at_a_time", "at once", "8 at once: "),
        ("disordered", "order", "the same responses in another order"),
        ("undeclared", "outputs", "2 responses without a declared output"),
        ("counts_back", "order", "num_output_tokens goes 1, 3, 2"),
        ("loses", "in one piece", "streamed 'one three ', with stream=false 'one two three '"),
    ],
)
def test_each_mistake_fails_its_check(
    model: str, check: str, told: str, triton: PlainTriton
) -> None:
    """With the request that failed and the command that repeats it."""
    found = asked(triton, model)
    failed = {one.check for one in found.values() if one.status == "fail"}
    assert check in failed, found
    assert told in found[check].detail
    assert found[check].request is not None
    assert found[check].repeat == f"tritonctl smoke --url {triton.url} --models {model}"
    # A piece out of order is missed in the whole text, too; other mistakes have one place.
    assert failed - {check} <= ({"in one piece"} if model == "counts_back" else set())


def test_a_stream_without_an_end(triton: PlainTriton) -> None:
    """Told after the time that the user gave it, not never."""
    found = asked(triton, "no_final", seconds=2.0)
    assert found["answers"].status == "pass"
    assert found["one final"].detail == "no final response, and the stream did not end"


def test_a_queue_that_refuses(triton: PlainTriton) -> None:
    """As it was set to: nothing can be said of batches, and nothing is wrong."""
    batching = asked(triton, "queues")["batching"]
    assert batching.status == "skipped"
    assert "its queue does not hold" in batching.detail


def test_interrupted(triton: PlainTriton, tmp_path: Path) -> None:
    """Ctrl-C amid a stream: exit code 130 at once, and the server goes on."""
    command = [sys.executable, "-m", "tritonctl", "smoke", "--url", triton.url, "--models", "hears"]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    asking = service_pb2.ModelStatisticsRequest(name="hears")
    deadline = time.monotonic() + PATIENCE
    before = triton.stub.ModelStatistics(asking).model_stats[0].inference_count
    # The first stream is over then, the second one takes as long.
    while triton.stub.ModelStatistics(asking).model_stats[0].inference_count == before:
        assert time.monotonic() < deadline, "nothing was asked"
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert "interrupted" in told
    assert asked(triton, "bytes")["answers"].status == "pass"


@pytest.mark.parametrize(
    ("model", "status", "told"),
    [
        ("hears", "pass", "after the client disconnected"),
        ("deaf", "fail", "the engine still worked 5 s after the client disconnected"),
        ("text", "skipped", "no step counts its requests"),
    ],
)
def test_a_stream_left_early(model: str, status: str, told: str, triton: PlainTriton) -> None:
    """What the engine itself has counted."""
    plan = SmokePlan(
        Endpoint(triton.url), models=(model,), metrics=partial(scrape, triton.metrics_url)
    )
    found = {one.check: one for one in smoke_server(plan, Silent()).outcomes}
    assert (found["cancellation"].status, told in found["cancellation"].detail) == (status, True)
    unasked = smoke_server(replace(plan, cancellation=False), Silent()).outcomes
    assert [one.detail for one in unasked if one.check == "cancellation"] == ["not requested"]


def test_unknown_model(triton: PlainTriton) -> None:
    """The names that there are."""
    with pytest.raises(UsageError, match="has no model nobody") as refused:
        asked(triton, "nobody")
    assert "adds, bytes" in refused.value.remedy


def test_command(triton: PlainTriton, cli: Cli, tmp_path: Path) -> None:
    """A table, JSON, the failures with their requests; exit codes 0 and 7."""
    right = cli("smoke", "--url", triton.url, "--models", "bytes,stream", cwd=tmp_path)
    assert right.returncode == 0, right.stderr
    assert "bytes   answers" in right.stdout
    assert "2 models tested" in right.stderr
    wrong = cli("smoke", "--url", triton.url, "--models", "wrong_type", cwd=tmp_path)
    assert wrong.returncode == 7
    assert "FAIL" in wrong.stdout
    assert f"repeat: tritonctl smoke --url {triton.url} --models wrong_type" in wrong.stderr
    assert '"name": "INPUT", "datatype": "FP32", "shape": [1, 4]' in wrong.stderr
    record = json.loads(
        cli("smoke", "--url", triton.url, "--models", "wrong_type", "--json", cwd=tmp_path).stdout
    )
    assert record["failed"] == 1
    gone = cli("smoke", "--url", "127.0.0.1:9", cwd=tmp_path)
    assert gone.returncode == 7
    assert "no answer from Triton at 127.0.0.1:9" in gone.stderr


def test_the_spellers(speller_project: Project, speller_server: Server, cli: Cli) -> None:
    """The project's own server: every check of a text ensemble passes, parity included."""
    done = cli("smoke", "--json", "--quiet", cwd=speller_project.root)
    record = as_documented("smoke", done.stdout)
    assert done.returncode == 0, done.stdout
    status = {(one["model"], one["check"]): one["status"] for one in record["checks"]}
    for check in (
        "answers",
        "one final",
        "outputs",
        "order",
        "in one piece",
        "tokenizer",
        "at once",
    ):
        assert status["int8", check] == "pass", record["checks"]
    # Short of processors, an engine is slow to take silence for a client that has left.
    details = {(one["model"], one["check"]): one["detail"] for one in record["checks"]}
    left = status["int8", "cancellation"], details["int8", "cancellation"]
    assert left[0] == "pass" or (left[0] == "skipped" and "not as cancelled" in left[1]), left
    assert status["int8_engine", "answers"] == "skipped"
    # By its address it is any Triton: no checkpoint, no metrics.
    by_address = SmokePlan(speller_server.endpoint, models=("int8",))
    found = {one.check: one for one in smoke_server(by_address, Silent()).outcomes}
    assert found["tokenizer"].status == found["cancellation"].status == "skipped"
