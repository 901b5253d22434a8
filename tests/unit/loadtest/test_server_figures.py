# SPDX-License-Identifier: Apache-2.0
"""What the server's counters say of the window, and the one sentence made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tritonctl.loadtest.analysis.bottleneck import limited_by
from tritonctl.loadtest.analysis.server_figures import server_figures
from tritonctl.loadtest.analysis.summary import (
    Gauge,
    GeneratorFigures,
    ModelLoadFigures,
    ServerLoadFigures,
)

IDLE = GeneratorFigures(workers=1, cpu_mean=0.2, cpu_max=0.3, send_lag_p99_ms=0.2)
MODEL = ModelLoadFigures(
    rate=10.0,
    failures=0.0,
    batch_factor=4.0,
    queue_ms=1.0,
    input_ms=0.1,
    infer_ms=20.0,
    output_ms=0.1,
    request_ms=22.0,
    share=0.9,
    pending_max=3.0,
    max_batch_size=8,
    instances=1,
)
SERVER = ServerLoadFigures(
    seconds=30.0,
    models={"engine": MODEL},
    engine={},
    cpu=0.3,
    cpu_max=0.5,
    host_cpu=0.2,
    host_cpus=4,
    rss_bytes=10**9,
)


USED_UP = "the machine's CPU: 100 % in use"
WAITED = "speller_engine: 5.5 requests waited for a slot in its batch"
QUEUED = "engine: requests waited 83 % of their time in its queue"


def scrape(t: float, requests: int = 0, **fields: Any) -> dict[str, Any]:
    """A scrape after so many requests of 20 ms, half of it in the queue, in batches of 4."""
    counters = {
        "success": requests,
        "failure": 0,
        "count": requests,
        "exec": requests // 4,
        "queue_us": 10_000 * requests,
        "input_us": 100 * requests,
        "infer_us": 9_000 * requests,
        "output_us": 200 * requests,
        "request_us": 20_000 * requests,
        "pending": requests % 7,
    }
    return {"t": t, "models": {"engine": counters}, "cpu": 2 * t, "rss_bytes": 1000 + t} | fields


FACTS = {
    "models": {"engine": {"max_batch_size": 8, "instance_group": [{"count": 2}, {}]}},
    "host": {"cpus": 4},
}


def test_figures_of_the_window() -> None:
    """Differences of the counters between its first and last scrape, per request."""
    found = server_figures([scrape(float(t), 40 * t) for t in range(32)], FACTS, 10.0, 30.0)
    assert found is not None
    assert found.seconds == 21
    model = found.models["engine"]
    assert (model.rate, model.batch_factor, model.failures) == (40, 4, 0)
    assert (model.queue_ms, model.input_ms, model.infer_ms, model.output_ms) == (10, 0.1, 9, 0.2)
    assert (model.request_ms, model.share, model.pending_max) == (20, 1, 6)
    assert (model.max_batch_size, model.instances) == (8, 3)
    assert (found.cpu, found.cpu_max, found.host_cpus, found.rss_bytes) == (2, 2, 4, 1031)


def test_steps_of_an_ensemble() -> None:
    """Shares are of the steps' time: the ensemble itself holds all of it."""
    lines = [scrape(float(t)) for t in range(3)]
    for t, line in enumerate(lines):
        line["models"] = {
            name: {"success": 10 * t, "request_us": us * t}
            for name, us in (("all", 1000), ("first", 200), ("second", 600))
        }
    found = server_figures(lines, {"ensemble": ["first", "second"]}, 0.0, 2.0)
    assert found is not None
    shares = {name: model.share for name, model in found.models.items()}
    assert shares == {"all": None, "first": pytest.approx(0.25), "second": pytest.approx(0.75)}
    assert found.models["first"].batch_factor is None


def engine_scrape(t: int, **own: float) -> dict[str, Any]:
    """A decoupled engine takes a request in 1 ms, and answers it in another 80."""
    taken = {"success": 10 * t, "request_us": 10_000 * t, "queue_us": 0}
    known = {name: 10 * t * value for name, value in own.items()}
    step = {"success": 60 * t, "request_us": 60_000 * t}
    return {"t": t, "models": {"all": {"success": 10 * t}, "engine": taken | known, "text": step}}


STREAMING = {
    "ensemble": ["engine", "text"],
    "models": {
        "all": {
            "model_transaction_policy": {"decoupled": True},
            "ensemble_scheduling": {"step": [{"model_name": "engine"}, {"model_name": "text"}]},
        },
        "engine": {"model_transaction_policy": {"decoupled": True}},
    },
}
OWN = {"ttft_s": 0.03, "ttft_n": 1, "e2e_s": 0.08, "e2e_n": 1}


@pytest.mark.parametrize("queued", [0.0, 0.02])
def test_a_decoupled_engine_tells_its_own_times(queued: float) -> None:
    """Triton sees it take requests: 1 ms of the 7 ms that the steps need, by its statistics."""
    lines = [engine_scrape(t, queued_s=queued, **OWN) for t in range(3)]
    found = server_figures(lines, STREAMING, 0.0, 2.0)
    assert found is not None
    own = found.models["engine"].engine
    assert own is not None
    assert own.queue_ms == (pytest.approx(20) if queued else None)
    assert own.prefill_ms == pytest.approx(10 if queued else 30)
    assert own.decode_ms == pytest.approx(50)
    assert own.total_ms == pytest.approx(80)
    assert found.models["engine"].share == pytest.approx(80 / (80 + 6))
    assert not found.models["all"].decoupled
    sentence = limited_by(IDLE, found, sent_late=False)
    assert sentence.startswith("engine: 93 % of the time of the steps")


def test_a_decoupled_engine_that_tells_nothing() -> None:
    """Its share is unknown, and so is what takes the time."""
    found = server_figures([engine_scrape(t) for t in range(3)], STREAMING, 0.0, 2.0)
    assert found is not None
    assert found.models["engine"].engine is None
    assert found.models["engine"].total_ms is None
    assert limited_by(IDLE, found, sent_late=False) == (
        "unknown: engine is decoupled and does not publish its response times"
    )


def test_before_the_run() -> None:
    """Without a warm-up counting begins with the last scrape before the start."""
    lines = [scrape(-1.5, 0), scrape(-0.5, 5), scrape(0.5, 25), scrape(1.5, 45)]
    found = server_figures(lines, {}, 0.0, 1.5)
    assert found is not None
    assert (found.seconds, found.models["engine"].rate) == (2.0, 20)
    found = server_figures(lines, {}, 0.2, 1.5)
    assert found is not None
    assert found.seconds == 1.0


def test_a_model_that_was_reloaded() -> None:
    """Its counters begin at zero again: nothing negative comes of it."""
    lines = [scrape(0.0, 100), scrape(1.0, 140), scrape(2.0, 20), scrape(3.0, 60)]
    found = server_figures(lines, {}, 0.0, 3.0)
    assert found is not None
    assert found.models["engine"].rate == pytest.approx((40 + 20 + 40) / 3)


def test_a_stub_that_ended() -> None:
    """CPU seconds that vanish with a process are not counted backwards."""
    lines = [scrape(float(t), cpu=cpu) for t, cpu in enumerate([10.0, 11.0, 4.0, 5.0, None])]
    found = server_figures(lines, {}, 0.0, 4.0)
    assert found is not None
    assert found.cpu == pytest.approx(2 / 3)


def test_gauges_of_engines() -> None:
    """Mean, maximum and change; what is no number is left out."""
    lines = [scrape(float(t), engine={"kv": 10 * t, "word": "x"}) for t in range(3)]
    found = server_figures(lines, {}, 0.0, 2.0)
    assert found is not None
    assert found.engine == {"kv": Gauge(mean=10, maximum=20, change=20)}


@pytest.mark.parametrize("times", [[], [1.0], [50.0, 60.0], [1.0, 1.0]])
def test_too_little_seen(times: list[float]) -> None:
    """Not even two moments of the window: no figures."""
    assert server_figures([scrape(t) for t in times], FACTS, 0.0, 10.0) is None


def engine(**changes: Any) -> ServerLoadFigures:
    """A server whose only model has these figures."""
    return replace(SERVER, models={"engine": replace(MODEL, **changes)})


def streams(waiting: float, active: float) -> ServerLoadFigures:
    """A server with a text engine that publishes how many wait and how many run."""
    gauges = {
        "tritonctl_waiting_streams": Gauge(waiting, 9, 0),
        "tritonctl_active_streams": Gauge(active, 8, 0),
    }
    return replace(SERVER, models={"speller_engine": MODEL}, engine=gauges)


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (None, "unknown: the server's metrics were not sampled"),
        (SERVER, "nothing: the server was idle 92 % of the time"),
        (
            engine(queue_ms=83.0, request_ms=100.0, batch_factor=7.9, rate=350.0),
            f"{QUEUED} while its batch was full (7.9 of 8)",
        ),
        (
            engine(queue_ms=83.0, request_ms=100.0, batch_factor=1.2, rate=50.0),
            f"{QUEUED} with a partly filled batch (1.2 of 8): its instances were busy",
        ),
        (
            # 10 requests/s of 20 ms: a queue in front of idle instances limits nothing.
            engine(queue_ms=83.0, request_ms=100.0),
            "nothing: the server was idle 92 % of the time",
        ),
        (
            engine(queue_ms=83.0, request_ms=100.0, max_batch_size=None, rate=200.0),
            QUEUED,
        ),
        (
            engine(rate=150.0, request_ms=21.0),
            "engine: 90 % of the time of the steps is spent in it, its instances work 76 % of it",
        ),
        (replace(SERVER, cpu=3.8), "the machine's CPU: the server used 3.8 of 4 cores"),
        (
            replace(SERVER, host_cpu=0.97),
            "the machine's CPU: 97 % in use, the server used 0.3 of 4 cores",
        ),
        (
            replace(engine(queue_ms=83.0, request_ms=100.0), host_cpu=1.0, cpu=None),
            f"{USED_UP}; requests waited most in the queue of engine, 83 ms each",
        ),
        (streams(5.5, 7.9), f"{WAITED}, which held 7.9"),
        (
            replace(streams(5.5, 7.9), cpu=3.9),
            f"{WAITED}, which held 7.9; the machine's CPU: the server used 3.9 of 4 cores",
        ),
        (streams(0.0, 0.2), "nothing: the server was idle 92 % of the time"),
        (
            replace(streams(0.2, 3.3), cpu=2.5),
            "speller_engine: its speed: none waited, 3.3 were in its batch",
        ),
        (
            replace(streams(0.2, 3.3), cpu=2.5, models={"fused": MODEL}),
            "fused: its speed: none waited, 3.3 were in its batch",
        ),
        (
            replace(SERVER, models={}, cpu=None),
            "unknown: the server answered no request while it was sampled",
        ),
        (
            replace(engine(batch_factor=None), cpu=None),
            "engine: 90 % of the time of the steps is spent in it",
        ),
    ],
)
def test_what_limited_it(server: ServerLoadFigures | None, sentence: str) -> None:
    """One sentence with the figures that it is derived from."""
    assert limited_by(IDLE, server, sent_late=False) == sentence


def test_the_generator_comes_first() -> None:
    """What it could not send says nothing about the server."""
    busy = replace(IDLE, cpu_mean=0.93)
    assert (
        limited_by(busy, SERVER, sent_late=False) == "the generator's CPU: it used 93 % of a core"
    )
    late = replace(IDLE, send_lag_p99_ms=12.0)
    assert limited_by(late, SERVER, sent_late=True) == (
        "the generator: it sent requests up to 12 ms late (P99)"
    )
    assert limited_by(late, SERVER, sent_late=False) == limited_by(IDLE, SERVER, sent_late=False)


def test_the_longest_queue_is_told() -> None:
    """Of several steps that wait, the one with the most waiting time."""
    short = replace(MODEL, queue_ms=20.0, request_ms=22.0, share=0.1, rate=180.0)
    long = replace(MODEL, queue_ms=80.0, request_ms=100.0, rate=180.0)
    server = replace(SERVER, models={"tokenizer": short, "engine": long})
    assert limited_by(IDLE, server, sent_late=False).startswith("engine: requests waited 80 %")
