# SPDX-License-Identifier: Apache-2.0
"""From scrapes to rates: counters, resets, ensembles, histograms. No clock, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonctl.protocol.metrics import Metrics
from tritonctl.top.counters import Increases, Reading
from tritonctl.top.figures import ModelLayout, ModelLoad, WindowFigures, figures
from tritonctl.top.histograms import TimeQuantiles, quantile
from tritonctl.top.layout import layout_of

SPELLER = ModelLayout(
    steps={"m": ("m_tokenizer", "m_engine", "m_detokenizer")}, instances={"m_tokenizer": 2}
)


def reading(at: float, text: str, cpu_seconds: float | None = None) -> Reading:
    """A scrape of that text."""
    return Reading.of(Metrics.parse(text), at, cpu_seconds)


def series(name: str, value: float, **labels: str) -> str:
    """One line of Prometheus' text."""
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}\n"


def model(name: str, success: float, **counters: float) -> str:
    """Triton's counters of one model: `queue_us=5` is its queue duration."""
    lines = series("nv_inference_request_success", success, model=name, version="1")
    for short, value in counters.items():
        series_name = f"nv_inference_{short.replace('_us', '_duration_us')}"
        lines += series(series_name, value, model=name, version="1")
    return lines


def only(found: WindowFigures, name: str) -> ModelLoad:
    """The figures of one model, wherever it stands."""
    everything = [m for top in found.models for m in (top, *top.steps)]
    (wanted,) = [m for m in everything if m.model == name]
    return wanted


# A busy machine is no failure.
unhurried = settings(deadline=None)
counts = st.lists(st.integers(0, 10**9), min_size=2, max_size=20)


@unhurried
@given(counts)
def test_a_counter_that_only_grows_rises_by_its_difference(values: list[int]) -> None:
    """However many readings lie between."""
    values.sort()
    readings = [reading(at, series("c_total", value)) for at, value in enumerate(values)]
    assert Increases(readings).total("c") == values[-1] - values[0]
    assert Increases(readings).reset == set()


@unhurried
@given(counts)
def test_a_reset_never_makes_a_negative_or_a_lost_rise(values: list[int]) -> None:
    """What was counted since each start is counted, whatever the order of the values."""
    readings = [reading(at, series("c_total", value)) for at, value in enumerate(values)]
    rises = [b - a if b >= a else b for a, b in pairwise(values)]
    grown = Increases(readings)
    assert grown.total("c") == sum(rises)
    assert (grown.reset != set()) == any(b < a for a, b in pairwise(values))


@unhurried
@given(counts, st.integers(1, 19))
def test_rises_add_up(values: list[int], cut: int) -> None:
    """Two windows side by side have together what the whole window has."""
    readings = [reading(at, series("c_total", value)) for at, value in enumerate(values)]
    cut = min(cut, len(readings) - 1)
    parts = (Increases(readings[: cut + 1]), Increases(readings[cut:]))
    assert sum(part.total("c") or 0 for part in parts) == Increases(readings).total("c")


@unhurried
@given(st.lists(st.integers(0, 50), min_size=2, max_size=10), st.floats(0.1, 1000))
def test_rates_are_never_negative_and_scale_with_time(values: list[int], seconds: float) -> None:
    """Half the time, twice the rate."""
    readings = [reading(at * seconds, model("m", v)) for at, v in enumerate(values)]
    slower = [reading(at * 2 * seconds, model("m", v)) for at, v in enumerate(values)]
    rate = only(figures(readings, ModelLayout()), "m").requests_per_s
    assert rate >= 0
    assert only(figures(slower, ModelLayout()), "m").requests_per_s == pytest.approx(rate / 2)


@unhurried
@given(
    st.lists(st.floats(1e-3, 59), min_size=1, max_size=200),
    st.lists(st.floats(1e-2, 60), min_size=1, max_size=12, unique=True),
    st.floats(0.01, 1),
)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(
    values: list[float], bounds: list[float], q: float
) -> None:
    """Interpolation cannot do better than the bucket, and must not do worse."""
    bounds.sort()
    buckets = {bound: float(sum(v <= bound for v in values)) for bound in [*bounds, math.inf]}
    true = sorted(values)[math.ceil(q * len(values) - 1e-9) - 1]
    found = quantile(buckets, q)
    if true > bounds[-1]:
        assert found == bounds[-1]
        return
    upper = min(bound for bound in bounds if bound >= true)
    lower = max((bound for bound in bounds if bound < true), default=0.0)
    assert lower <= found <= upper * (1 + 1e-12)


def test_quantiles_as_prometheus_has_them() -> None:
    """Known figures: 100 values, half of them up to 10 ms, all up to 50 ms."""
    times = TimeQuantiles.of({0.01: 50.0, 0.05: 100.0, math.inf: 100.0}, 2.0, 1e3)
    assert times is not None
    assert (times.n, times.mean_ms, times.p50_ms) == (100, 20.0, 10.0)
    assert times.p99_ms == pytest.approx(49.2)
    assert TimeQuantiles.of({0.01: 0.0, math.inf: 0.0}, 0.0, 1e3) is None
    assert TimeQuantiles.of({}, 0.0, 1e3) is None


def test_a_model_over_two_scrapes() -> None:
    """Every figure of Triton's own counters."""
    before = model("m", 10, count=40, exec_count=10, request_us=0, queue_us=0)
    after = model("m", 30, count=140, exec_count=35, request_us=200_000, queue_us=50_000)
    pending = series("nv_inference_pending_request_count", 3, model="m", version="1")
    found = only(figures([reading(100, before), reading(110, after + pending)], ModelLayout()), "m")
    assert found.requests_per_s == 2
    assert found.batch_factor == 4
    assert found.queue_share == 0.25
    assert found.latency_ms == 10
    assert found.waiting == 3
    assert (found.ttft, found.tokens_per_s, found.kv_used, found.instances) == (None,) * 4
    assert not found.restarted


def test_versions_and_instances_are_added_up() -> None:
    """Two versions are one model; the instances that publish something are counted."""
    lines = model("m", 4) + series("nv_inference_request_success", 6, model="m", version="2")
    streams = [
        series("tritonctl_active_streams", 2, model="m", model_instance=f"m_0_{i}")
        for i in range(3)
    ]
    both = [reading(0, model("m", 0)), reading(1, lines + "".join(streams))]
    found = only(figures(both, ModelLayout(instances={"m": 9})), "m")
    assert (found.requests_per_s, found.active_streams, found.instances) == (10, 6, 3)


def speller(success: float, other: float, left: float, tokens: float) -> str:
    """An ensemble with its engine's own metrics."""
    text = model("m", success) + model("m_tokenizer", success) + model("other", 1)
    text += model("m_engine", success, request_us=success * 100, queue_us=success * 20)
    text += model("m_detokenizer", 5 * success, request_us=success * 100, queue_us=0)
    text += series("nv_inference_request_failure", other, model="m", reason="OTHER")
    text += series("tritonctl_requests_total", left, model="m_engine", outcome="cancelled")
    text += series("tritonctl_output_tokens_total", tokens, model="m_engine")
    text += series("tritonctl_waiting_streams", 2, model="m_engine")
    for state, blocks in (("used", 30), ("free", 10)):
        text += series("tritonctl_kv_blocks", blocks, model="m_engine", state=state)
    for bound, share in (("0.01", 0.5), ("0.1", 1), ("+Inf", 1)):
        name = "tritonctl_time_to_first_token_seconds_bucket"
        text += series(name, share * success, model="m_engine", le=bound)
    return text


def test_an_ensemble_has_the_figures_of_its_steps() -> None:
    """Text, cache and queue; the steps stand below it, other models beside."""
    both = [reading(0, speller(0, 0, 0, 0)), reading(2, speller(100, 0, 0, 900))]
    found = figures(both, SPELLER)
    assert [m.model for m in found.models] == ["m", "other"]
    ensemble = found.models[0]
    assert [m.model for m in ensemble.steps] == list(SPELLER.steps["m"])
    assert (ensemble.requests_per_s, ensemble.tokens_per_s) == (50, 450)
    assert ensemble.kv_used == 0.75
    assert ensemble.waiting == 2
    assert ensemble.queue_share == pytest.approx(0.1)
    assert ensemble.ttft is not None
    assert ensemble.ttft.n == 100
    assert ensemble.ttft.p50_ms == pytest.approx(10)
    assert ensemble.batch_factor is None
    assert only(found, "m_tokenizer").instances == 2


def test_failures_of_an_ensemble_count_once() -> None:
    """Triton counts an error twice and a client that left once, all as OTHER."""
    both = [reading(0, speller(0, 10, 2, 0)), reading(1, speller(0, 19, 5, 0))]
    ensemble = figures(both, SPELLER).models[0]
    assert ensemble.failures == {"CANCELED": 3, "OTHER": 3}
    assert ensemble.failures_per_s == 6


def test_failures_that_the_steps_tell_have_their_reason() -> None:
    """What they tell is taken off Triton's doubled count; what is left over stays OTHER."""

    def text(other: float, invalid: float) -> str:
        failed = series("tritonctl_errors_total", invalid, model="m_tokenizer", reason="invalid")
        return speller(0, other, 0, 0) + failed

    ensemble = figures([reading(0, text(0, 0)), reading(1, text(10, 3))], SPELLER).models[0]
    assert ensemble.failures == {"OTHER": 2, "invalid": 3}
    assert ensemble.steps[0].failures == {"invalid": 3}
    direct = figures([reading(0, text(0, 0)), reading(1, text(0, 3))], SPELLER).models[0]
    assert direct.failures == {}


def test_a_process_that_shows_no_sign_of_life() -> None:
    """Its uptime stands still; in a window too short to tell nothing is claimed."""

    def text(seconds: float) -> str:
        lives = {"m_0_0": 7.0, "m_0_1": seconds}
        return model("m", 1) + "".join(
            series("tritonctl_uptime_seconds_total", value, model="m", model_instance=instance)
            for instance, value in lives.items()
        )

    assert (
        only(figures([reading(0, text(7)), reading(5, text(12))], ModelLayout()), "m").silent == 1
    )
    assert only(figures([reading(0, text(7)), reading(1, text(8))], ModelLayout()), "m").silent == 0


def test_failures_of_a_model_are_as_triton_says() -> None:
    """By reason; those that did not occur are left out."""
    name = "nv_inference_request_failure"

    def text(backend: float, rejected: float) -> str:
        failed = {"BACKEND": backend, "REJECTED": rejected, "CANCELED": 7}
        return model("m", 1) + "".join(
            series(name, value, model="m", reason=reason) for reason, value in failed.items()
        )

    found = only(figures([reading(0, text(1, 1)), reading(4, text(3, 7))], ModelLayout()), "m")
    assert found.failures == {"BACKEND": 2, "REJECTED": 6}
    assert found.failures_per_s == 2


def test_a_server_that_was_started_again_is_told() -> None:
    """Its counters begin anew: no negative rates, and the model is marked."""
    both = [reading(0, model("m", 1000)), reading(1, model("m", 5))]
    found = only(figures(both, ModelLayout()), "m")
    assert (found.requests_per_s, found.restarted) == (5, True)


def test_models_come_and_go() -> None:
    """One that was unloaded is gone; one that was loaded has counted from zero."""
    both = [reading(0, model("a", 9)), reading(1, model("b", 4))]
    assert [m.model for m in figures(both, SPELLER).models] == ["b"]
    assert only(figures(both, SPELLER), "b").requests_per_s == 4


def test_steps_of_an_ensemble_that_is_not_served_stand_alone() -> None:
    """A layout of another server hides nothing."""
    both = [reading(at, model("m_engine", at)) for at in (0, 1)]
    assert [m.model for m in figures(both, SPELLER).models] == ["m_engine"]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("vllm:time_to_first_token_seconds", 1e3),
        ("nv_inference_first_response_histogram_ms", 1.0),
    ],
)
def test_times_of_other_backends(name: str, unit: float) -> None:
    """vLLM's histogram in seconds, Triton's own in milliseconds."""

    def text(count: int) -> str:
        buckets = {"10": count, "+Inf": count}
        return model("m", count) + "".join(
            series(f"{name}_bucket", value, model="m", le=le) for le, value in buckets.items()
        )

    found = only(figures([reading(0, text(0)), reading(1, text(8))], ModelLayout()), "m")
    assert found.ttft is not None
    assert (found.ttft.n, found.ttft.p50_ms) == (8, 5 * unit)


def test_the_kv_cache_of_tensorrt_llm() -> None:
    """Blocks used and free by the C++ backend; requests active and waiting."""
    text = model("m", 1)
    for kind, blocks in (("used", 25), ("free", 75), ("max", 100), ("tokens_per", 64)):
        text += series(
            "nv_trt_llm_kv_cache_block_metrics", blocks, model="m", kv_cache_block_type=kind
        )
    for kind, number in (("active", 7), ("waiting", 3), ("max", 512)):
        text += series("nv_trt_llm_request_metrics", number, model="m", request_type=kind)
    found = only(figures([reading(0, text), reading(1, text)], ModelLayout()), "m")
    assert (found.kv_used, found.active_streams, found.waiting) == (0.25, 7, 3)


def test_gauges_are_the_mean_of_the_window() -> None:
    """One look would show whatever happened to be at that moment."""
    text = [
        model("m", 1) + series("tritonctl_active_streams", value, model="m")
        for value in (100, 0, 4, 8)
    ]
    readings = [reading(at, lines) for at, lines in enumerate(text)]
    assert only(figures(readings, ModelLayout()), "m").active_streams == 4


def test_the_server_and_its_machine() -> None:
    """CPU of the processes as cores; GPUs one by one; nothing where nothing is known."""
    gpu: Mapping[str, float] = {"utilization": 0.5, "memory_used_bytes": 8, "memory_total_bytes": 9}
    text = series("nv_cpu_utilization", 0.25) + series("nv_cpu_memory_total_bytes", 100)
    text += "".join(series(f"nv_gpu_{name}", value, gpu_uuid="G") for name, value in gpu.items())
    server = figures([reading(0, text, 10.0), reading(4, text, 16.0)], ModelLayout()).server
    assert (server.cpu_cores, server.host_cpu, server.host_memory_total_bytes) == (1.5, 0.25, 100)
    (found,) = server.gpus
    assert (found.utilization, found.memory_used_bytes, found.memory_total_bytes) == (0.5, 8, 9)
    nothing = figures([reading(0, ""), reading(1, "")], ModelLayout())
    assert nothing.models == ()
    assert (nothing.server.cpu_cores, nothing.server.host_cpu, nothing.server.gpus) == (
        None,
        None,
        (),
    )


def test_a_machine_that_triton_has_not_looked_at() -> None:
    """For its first two seconds a server publishes zeros: that is unknown, not idle."""
    names = ("utilization", "memory_used_bytes", "memory_total_bytes")
    text = "".join(series(f"nv_cpu_{name}", 0) for name in names)
    server = figures([reading(0, text), reading(1, text)], ModelLayout()).server
    found = (server.host_cpu, server.host_memory_used_bytes, server.host_memory_total_bytes)
    assert found == (None, None, None)


def test_readings_out_of_order_are_a_bug() -> None:
    """A clock that goes back would make rates negative."""
    with pytest.raises(ValueError, match="in order"):
        figures([reading(1, ""), reading(1, "")], ModelLayout())


def cached(name: str, hits: float, misses: float) -> str:
    """What Triton says of a model's cache."""
    return "".join(
        series(f"nv_cache_num_{what}_per_model", value, model=name, version="7")
        for what, value in (("hits", hits), ("misses", misses))
    )


def test_hits_of_the_response_cache() -> None:
    """Of the model behind the public one, as Triton counts them."""
    layout = ModelLayout(steps={"m": ("m_engine",)})
    before, after = (
        cached("m_engine", 3 * n, n) + model("m", 4 * n) + model("m_engine", 4 * n) for n in (0, 5)
    )
    found = figures([reading(0, before), reading(10, after)], layout)
    assert only(found, "m").cache_hits == only(found, "m_engine").cache_hits == 0.75
    assert only(figures([reading(0, before), reading(9, before)], layout), "m").cache_hits is None


def test_hits_of_a_cached_ensemble() -> None:
    """Triton does not count them: what did not reach the first step; it does no work of its own."""
    layout = ModelLayout(
        steps={
            "m": ("m_cached", "m_tokenizer", "m_engine"),
            "m_cached": ("m_tokenizer", "m_engine"),
        }
    )
    before, after = (
        cached("m_cached", 0, 0)
        + model("m", 4 * n)
        + model("m_cached", 4 * n, queue_us=0, request_us=9 * n)
        + model("m_tokenizer", n, queue_us=n, request_us=2 * n)
        + model("m_engine", n, queue_us=n, request_us=2 * n)
        for n in (0, 5)
    )
    found = figures([reading(0, before), reading(10, after)], layout)
    assert [each.model for each in found.models] == ["m"]
    assert [step.model for step in found.models[0].steps] == [*layout.steps["m"]]
    assert only(found, "m").cache_hits == only(found, "m_cached").cache_hits == 0.75
    assert only(found, "m_engine").cache_hits is None
    assert only(found, "m").queue_share == 0.5


def test_layout_of_a_repository(tmp_path: Path) -> None:
    """Steps and instances from config.pbtxt; a damaged one tells nothing."""
    configs = {
        "m": 'platform: "ensemble" ensemble_scheduling { step [{model_name: "a"}, '
        '{model_name: "b"}, {model_name: "a"}] }',
        "a": "instance_group [{count: 2}, {count: 3 gpus: [0, 1]}]",
        "b": 'backend: "python"',
        "damaged": "instance_group [",
    }
    for name, text in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "README.md").write_text("not a model")
    assert layout_of(tmp_path) == ModelLayout(steps={"m": ["a", "b"]}, instances={"a": 8})
    (tmp_path / "m").rename(tmp_path / "m_cached")
    (tmp_path / "m").mkdir()
    front = 'ensemble_scheduling { step [{model_name: "m_cached"}] }'
    (tmp_path / "m" / "config.pbtxt").write_text(front)
    steps = layout_of(tmp_path).steps
    assert steps == {"m": ["m_cached", "a", "b"], "m_cached": ["a", "b"]}
    assert layout_of(tmp_path / "nowhere") == ModelLayout()
