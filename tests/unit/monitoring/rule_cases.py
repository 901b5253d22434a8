# SPDX-License-Identifier: Apache-2.0
"""What the rules must say about given series: the cases of `promtool test rules`.

Counters are written as what they gain per second; scraped once a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Labels = dict[str, str]
Case = dict[str, Any]

ENGINE = {"model": "speller_engine", "public_model": "speller", "step": "engine"}
INSTANCE = ENGINE | {"instance": "a:8002", "model_instance": "speller_engine_0_0"}
TOKENIZER = {"model": "speller_tokenizer", "public_model": "speller", "step": "tokenizer"}
DETOKENIZER = {"model": "speller_detokenizer", "public_model": "speller", "step": "detokenizer"}
ENSEMBLE = {"model": "speller", "public_model": "speller", "step": "ensemble"}
BEHIND_CACHE = {"model": "speller_cached", "public_model": "speller", "step": "cached"}
PLAIN = {"model": "encoder", "public_model": "encoder", "step": "model"}
SPELLER = {"public_model": "speller"}
ENCODER = {"public_model": "encoder"}
FAILURE, SUCCESS = "nv_inference_request_failure", "nv_inference_request_success"
ERRORS = "tritonctl_errors_total"
TTFT, ITL = "tritonctl_time_to_first_token_seconds", "tritonctl_inter_token_latency_seconds"
E2E = "tritonctl_request_duration_seconds"
THREE_DAYS = 3 * 24 * 60


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as promtool reads it."""
    return f"{name}{{{','.join(f'{k}={v!r}' for k, v in labels.items())}}}".replace("'", '"')


@dataclass
class Story:
    """Some series over some time, and what the rules say at its end."""

    name: str
    minutes: int = 20
    inputs: list[Case] = field(default_factory=list)
    samples: list[Case] = field(default_factory=list)
    alerts: dict[str, list[Labels]] = field(default_factory=dict)

    def gains(self, name: str, labels: Mapping[str, str], per_second: float) -> Story:
        """A counter."""
        # Whole numbers stay exact over days of addition.
        step = f"{60 * per_second:.10g}"
        return self._series(name, labels, f"0+{step}x{self.minutes}")

    def stays(self, name: str, labels: Mapping[str, str], value: float) -> Story:
        """A gauge, or a counter that stands still."""
        return self._series(name, labels, f"{value:.10g}+0x{self.minutes}")

    def values(self, name: str, labels: Mapping[str, str], text: str) -> Story:
        """Whatever promtool's own notation says."""
        return self._series(name, labels, text)

    def histogram(self, name: str, buckets: Mapping[str, float]) -> Story:
        """Cumulative gains per second of some bounds; +Inf is the count, too."""
        for bound, gain in buckets.items():
            self.gains(f"{name}_bucket", INSTANCE | {"le": bound}, gain)
        return self.gains(f"{name}_count", INSTANCE, buckets["+Inf"])

    def says(self, name: str, value: float, **labels: str) -> Story:
        """What a recorded series is at the end, to the thousandth; rounding leaves no name."""
        self.samples.append(
            {
                "expr": f"round({series(name, labels)}, 0.001)",
                "eval_time": f"{self.minutes}m",
                "exp_samples": [{"labels": series("", labels), "value": value}],
            }
        )
        return self

    def says_nothing(self, name: str, **labels: str) -> Story:
        """There is no such series."""
        expression = {"expr": series(name, labels), "eval_time": f"{self.minutes}m"}
        self.samples.append(expression | {"exp_samples": []})
        return self

    def rings(self, alert: str, **labels: str) -> Story:
        """That alert fires at the end, and no other of its name but those named so, too."""
        self.alerts.setdefault(alert, []).append(labels)
        return self

    def silent(self, *alerts: str) -> Story:
        """None of these fires at the end."""
        for alert in alerts:
            self.alerts.setdefault(alert, [])
        return self

    def _series(self, name: str, labels: Mapping[str, str], text: str) -> Story:
        self.inputs.append({"series": series(name, labels), "values": text})
        return self


def _failing(story: Story, requests: float, failing: float) -> Story:
    """An ensemble that answers and fails so often; failing counts twice, as Triton does."""
    story.gains(SUCCESS, ENSEMBLE, requests)
    story.gains(FAILURE, ENSEMBLE | {"reason": "OTHER"}, 2 * failing)
    return story.gains(FAILURE, DETOKENIZER | {"reason": "CANCELED"}, 0)


def traffic() -> Story:
    """An ensemble at work on two replicas."""
    story = Story("traffic")
    for replica in ("a:8002", "b:8002"):
        at = {"instance": replica}
        story.gains(SUCCESS, ENSEMBLE | at, 2).gains(SUCCESS, ENGINE | at, 2)
        story.gains("nv_inference_count", ENGINE | at, 8)
        story.gains("nv_inference_exec_count", ENGINE | at, 2)
        story.gains("nv_inference_queue_duration_us", ENGINE | at, 1000)
        story.gains("nv_inference_request_duration_us", ENGINE | at, 4000)
        story.gains(SUCCESS, BEHIND_CACHE | at, 8)
        story.gains("nv_cache_num_hits_per_model", BEHIND_CACHE | at, 0)
        story.gains("nv_cache_num_misses_per_model", BEHIND_CACHE | at, 0)
        story.gains("nv_cache_num_hits_per_model", PLAIN | at, 3)
        story.gains("nv_cache_num_misses_per_model", PLAIN | at, 1)
        engine = INSTANCE | at
        story.gains("tritonctl_output_tokens_total", engine, 60)
        story.gains("tritonctl_input_tokens_total", engine, 20)
        story.gains("tritonctl_responses_total", engine, 30)
        for outcome, gain in (("reused", 3), ("missed", 1)):
            labels = engine | {"outcome": outcome}
            story.gains("tritonctl_prefix_cache_blocks_total", labels, gain)
        used = 10 if replica == "a:8002" else 70
        story.stays("tritonctl_kv_blocks", engine | {"state": "used"}, used)
        story.stays("tritonctl_kv_blocks", engine | {"state": "free"}, 100 - used)
    step = ENGINE
    story.says("model:nv_inference_request_success:rate5m", 4, **step)
    story.says("model:nv_inference_batch:factor5m", 4, **step)
    story.says("model:nv_inference_queue:share5m", 0.25, **step)
    story.says("model:nv_cache:hit_ratio5m", 0.75, **PLAIN)
    story.says("model:nv_cache:hit_ratio5m", 0.75, **BEHIND_CACHE)
    story.says("public_model:answers:rate5m", 4, **SPELLER)
    story.says("public_model:requests:rate5m", 4, **SPELLER)
    story.says("public_model:output_tokens:rate5m", 120, **SPELLER)
    story.says("public_model:input_tokens:rate5m", 40, **SPELLER)
    story.says("public_model:tokens_per_response:ratio5m", 2, **SPELLER)
    story.says("public_model:prefix_cache:hit_ratio5m", 0.75, **SPELLER)
    return story.says("public_model:kv_blocks:used_ratio", 0.7, **SPELLER)


def idle() -> Story:
    """Counters that stand still: no ratio of nothing, and no alert."""
    story = _failing(Story("idle"), 0, 0)
    for name in ("count", "exec_count", "queue_duration_us", "request_duration_us"):
        story.gains(f"nv_inference_{name}", ENGINE, 0)
    for name in ("hits", "misses"):
        story.gains(f"nv_cache_num_{name}_per_model", ENSEMBLE, 0)
    story.histogram(TTFT, {"0.5": 0, "+Inf": 0})
    story.says_nothing("model:nv_cache:hit_ratio5m", **ENSEMBLE)
    story.says_nothing("model:nv_inference_batch:factor5m", **ENGINE)
    story.says_nothing("model:nv_inference_queue:share5m", **ENGINE)
    story.says_nothing("public_model:slo_bad_ratio:rate5m")
    story.says("public_model:requests:rate5m", 0, **SPELLER)
    return story.silent("TritonErrorBudgetBurn", "TritonQueueFull", "TritonKvCacheFull")


def failures() -> Story:
    """Three failures a second, which Triton counts as six, and two clients that went away."""
    story = Story("failures")
    story.gains(SUCCESS, ENSEMBLE, 7)
    story.gains(FAILURE, ENSEMBLE | {"reason": "OTHER"}, 2 * 3 + 2)
    story.gains(FAILURE, ENSEMBLE | {"reason": "CANCELED"}, 0)
    story.gains(FAILURE, TOKENIZER | {"reason": "BACKEND"}, 0.5)
    story.gains(FAILURE, DETOKENIZER | {"reason": "CANCELED"}, 2)
    story.gains(ERRORS, TOKENIZER | {"reason": "invalid"}, 1)
    story.gains(ERRORS, INSTANCE | {"reason": "queue_full"}, 1)
    story.says("public_model:ensemble_failures:rate5m", 8, **SPELLER)
    story.says("public_model:cancelled:rate5m", 2, **SPELLER)
    story.says("public_model:failures:rate5m", 3, **SPELLER)
    story.says("public_model:requests:rate5m", 10, **SPELLER)
    for reason, gain in (("invalid", 1), ("queue_full", 1), ("BACKEND", 0.5)):
        story.says("public_model:errors:rate5m", gain, reason=reason, **SPELLER)
    story.says("public_model:errors:rate5m", 0.5, reason="unattributed", **SPELLER)
    story.says("public_model:slo_bad:rate5m", 2, slo="error_rate", **SPELLER)
    story.says("public_model:slo_events:rate5m", 9, slo="error_rate", **SPELLER)
    story.says("public_model:slo_bad_ratio:rate5m", 0.222, slo="error_rate", **SPELLER)
    return story.rings("TritonQueueFull", severity="ticket", reason="queue_full", **SPELLER)


def cancellations() -> Story:
    """Clients that go away are no failures: an ensemble counts each once."""
    story = Story("cancellations")
    story.gains(SUCCESS, ENSEMBLE, 1)
    story.gains(FAILURE, ENSEMBLE | {"reason": "OTHER"}, 3)
    story.gains(FAILURE, DETOKENIZER | {"reason": "CANCELED"}, 3)
    story.says("public_model:failures:rate5m", 0, **SPELLER)
    return story.silent("TritonErrorBudgetBurn")


def dead_detokenizer() -> Story:
    """Its requests fail, each counted once by the ensemble and for each response by the step."""
    story = Story("dead detokenizer")
    story.gains(SUCCESS, ENSEMBLE, 0)
    story.gains(FAILURE, ENSEMBLE | {"reason": "OTHER"}, 2)
    story.gains(FAILURE, DETOKENIZER | {"reason": "BACKEND"}, 10)
    story.says("public_model:lost_by_detokenizer:rate5m", 2, **SPELLER)
    story.says("public_model:failures:rate5m", 2, **SPELLER)
    story.says("public_model:requests:rate5m", 2, **SPELLER)
    labels = {"reason": "BACKEND", "step": "detokenizer"}
    return story.says("public_model:errors:rate5m", 2, **labels, **SPELLER)


def plain_model() -> Story:
    """Triton takes what a Python backend answers with an error for a success."""
    story = Story("model without steps")
    story.gains(SUCCESS, PLAIN, 10)
    story.gains(FAILURE, PLAIN | {"reason": "BACKEND"}, 2)
    story.gains(FAILURE, PLAIN | {"reason": "CANCELED"}, 5)
    story.gains(ERRORS, PLAIN | {"reason": "failed"}, 1)
    story.says("public_model:answers:rate5m", 9, **ENCODER)
    story.says("public_model:cancelled:rate5m", 5, **ENCODER)
    story.says("public_model:failures:rate5m", 3, **ENCODER)
    story.says("public_model:requests:rate5m", 12, **ENCODER)
    story.says("public_model:errors:rate5m", 1, reason="failed", **ENCODER)
    return story.says("public_model:errors:rate5m", 2, reason="BACKEND", **ENCODER)


def native_model() -> Story:
    """Triton's own backends have no metrics of ours."""
    story = Story("model of Triton's own backend")
    story.gains(SUCCESS, PLAIN, 10).gains(FAILURE, PLAIN | {"reason": "BACKEND"}, 2)
    story.says("public_model:answers:rate5m", 10, **ENCODER)
    return story.says("public_model:failures:rate5m", 2, **ENCODER)


def latency() -> Story:
    """Quantiles, and events beyond the bounds of the SLO: 500, 60 and 4000 ms."""
    story = Story("latency")
    story.histogram(TTFT, {"0.25": 6, "0.5": 8, "1": 10, "+Inf": 10})
    # 60 ms lie 40 % of the way from 50 to 75 ms.
    story.histogram(ITL, {"0.05": 80, "0.075": 90, "0.1": 100, "+Inf": 100})
    # 4 s lie 60 % of the way from 2.5 to 5 s.
    story.histogram(E2E, {"2.5": 0, "5": 10, "10": 10, "+Inf": 10})
    for quantile, value in (("0.5", 0.208), ("0.9", 0.75), ("0.99", 0.975)):
        story.says(f"public_model:{TTFT}:quantile5m", value, quantile=quantile, **SPELLER)
    story.says(f"public_model:{ITL}:quantile5m", 0.075, quantile="0.9", **SPELLER)
    story.says(f"public_model:{E2E}:quantile5m", 3.75, quantile="0.5", **SPELLER)
    late = {"ttft_p99_ms": (2, 10), "itl_p99_ms": (16, 100), "e2e_p99_ms": (4, 10)}
    for slo, (bad, events) in late.items():
        story.says("public_model:slo_bad:rate5m", bad, slo=slo, **SPELLER)
        story.says("public_model:slo_events:rate5m", events, slo=slo, **SPELLER)
    return story.says("public_model:slo_bad_ratio:rate5m", 0.16, slo="itl_p99_ms", **SPELLER)


def fast_burn() -> Story:
    """2 % fail since an hour: 20 times what 30 days allow, so a page."""
    story = _failing(Story("fast burn", minutes=60), 98, 2)
    story.says("public_model:slo_bad_ratio:rate1h", 0.02, slo="error_rate", **SPELLER)
    return (
        story.rings("TritonErrorBudgetBurn", **_burn("page", "1h"))
        .rings("TritonErrorBudgetBurn", **_burn("page", "6h"))
        .rings("TritonErrorBudgetBurn", **_burn("ticket", "1d"))
        .rings("TritonErrorBudgetBurn", **_burn("ticket", "3d"))
    )


def slow_burn() -> Story:
    """0.2 % fail for three days: twice the budget's pace, which one ticket tells."""
    story = _failing(Story("slow burn", minutes=THREE_DAYS), 499, 1)
    for window in ("30m", "1h", "2h", "6h", "1d", "3d"):
        name = f"public_model:slo_bad_ratio:rate{window}"
        story.says(name, 0.002, slo="error_rate", **SPELLER)
    return story.rings("TritonErrorBudgetBurn", **_burn("ticket", "3d"))


def over_again() -> Story:
    """Half an hour of failures that ended ten minutes ago: the short window takes the page back."""
    story = Story("over again", minutes=60)
    story.gains(SUCCESS, ENSEMBLE, 10)
    story.values(FAILURE, ENSEMBLE | {"reason": "OTHER"}, "0x20 0+120x30 3600+0x20")
    story.silent("TritonQueueFull")
    # The tickets' windows are longer than what there is of it.
    for severity, window in (("page", "6h"), ("ticket", "1d"), ("ticket", "3d")):
        story.rings("TritonErrorBudgetBurn", **_burn(severity, window))
    return story


def _burn(severity: str, window: str, slo: str = "error_rate") -> Labels:
    return {"severity": severity, "window": window, "slo": slo, **SPELLER}


def slow_first_tokens() -> Story:
    """20 % beyond the bound of the 99th percentile."""
    story = Story("slow first tokens", minutes=60).histogram(TTFT, {"0.5": 8, "+Inf": 10})
    for severity, window in (("page", "1h"), ("page", "6h"), ("ticket", "1d"), ("ticket", "3d")):
        story.rings("TritonErrorBudgetBurn", **_burn(severity, window, "ttft_p99_ms"))
    return story


def server_down() -> Story:
    """One of two does not answer."""
    story = Story("server down", minutes=3)
    story.stays("up", {"job": "triton", "instance": "a:8002"}, 1)
    story.stays("up", {"job": "triton", "instance": "b:8002"}, 0)
    story.stays("up", {"job": "gateway", "instance": "envoy:9901"}, 0)
    story.rings("TritonServerDown", severity="page", job="triton", instance="b:8002")
    story.rings("GatewayDown", severity="page", job="gateway", instance="envoy:9901")
    story.rings("TritonReplicaMissing", severity="ticket")
    return story.silent("TritonServerMissing")


def replicas_up() -> Story:
    """As many as there shall be."""
    story = Story("replicas up", minutes=10)
    for instance in ("a:8002", "b:8002"):
        story.stays("up", {"job": "triton", "instance": instance}, 1)
    return story.silent("TritonReplicaMissing", "TritonServerDown", "TritonServerMissing")


def servers_missing() -> Story:
    """Nobody to scrape."""
    story = Story("servers missing", minutes=10)
    story.stays("up", {"job": "gateway", "instance": "envoy:9901"}, 1)
    story.rings("TritonServerMissing", severity="page", job="triton")
    return story.silent("TritonServerDown", "GatewayDown")


def stub_gone() -> Story:
    """The values of a killed process stand still; those of a new version go on beside it."""
    story = Story("stub gone", minutes=10)
    uptime = "tritonctl_uptime_seconds_total"
    story.stays(uptime, INSTANCE | {"version": "1"}, 63)
    other = DETOKENIZER | {"instance": "a:8002", "model_instance": "speller_detokenizer_0_0"}
    story.stays(uptime, other | {"version": "1"}, 63)
    story.gains(uptime, other | {"version": "2"}, 1)
    gone = {name: INSTANCE[name] for name in ("instance", "public_model", "model")}
    gone["model_instance"] = INSTANCE["model_instance"]
    return story.rings("TritonStubGone", severity="page", **gone)


def stub_alive() -> Story:
    """A second per second."""
    story = Story("stub alive", minutes=10).gains("tritonctl_uptime_seconds_total", INSTANCE, 1)
    return story.silent("TritonStubGone")


def triton_queue_full() -> Story:
    """The queue of a model with priorities is Triton's, which counts no refusal."""
    story = Story("Triton's queue full")
    name = "nv_inference_pending_request_count"
    labels = {"public_model": "urgent", "step": "engine"}
    story.stays(name, labels | {"instance": "a:8002"}, 7)
    story.stays(name, labels | {"instance": "b:8002"}, 6)
    full = {"public_model": "urgent", "instance": "a:8002", "reason": "pending"}
    return story.rings("TritonQueueFull", severity="ticket", **full)


def queue_timeouts() -> Story:
    """They are counted, at the step."""
    story = Story("timeouts in Triton's queue")
    story.gains(FAILURE, ENGINE | {"reason": "REJECTED"}, 0.1)
    return story.rings("TritonQueueFull", severity="ticket", reason="REJECTED", **SPELLER)


def kv_full() -> Story:
    """96 of 100 blocks."""
    story = Story("KV cache full")
    story.stays("tritonctl_kv_blocks", INSTANCE | {"state": "used"}, 96)
    story.stays("tritonctl_kv_blocks", INSTANCE | {"state": "free"}, 4)
    return story.rings("TritonKvCacheFull", severity="ticket", **SPELLER)


def _release(story: Story, version: str, failing: float, fast: float) -> Story:
    """A version that is asked ten times a second: so many fail, so many begin within 50 ms."""
    at = INSTANCE | {"version": version}
    story.gains(SUCCESS, ENSEMBLE | {"version": version}, 10 - failing)
    story.gains("tritonctl_requests_total", at | {"outcome": "stop"}, 10 - failing)
    story.gains("tritonctl_requests_total", at | {"outcome": "error"}, failing)
    for bound, gain in {"0.05": fast, "0.1": 10.0, "+Inf": 10.0}.items():
        story.gains(f"{TTFT}_bucket", at | {"le": bound}, gain)
    return story


def two_releases() -> Story:
    """A candidate that is as good as stable, within what varies."""
    story = _release(_release(Story("two releases"), "2", 0.1, 10), "3", 0.2, 9)
    of = SPELLER | {"version": "3"}
    story.says("public_model_version:answers:rate5m", 9.8, **of)
    story.says("public_model_version:failures:ratio5m", 0.02, **of)
    story.says("public_model_version:tritonctl_time_to_first_token_seconds:median5m", 0.028, **of)
    return story.silent("ReleaseFailing", "ReleaseSlow")


def a_bad_release() -> Story:
    """It fails one in ten, and its first tokens take three times as long."""
    story = _release(_release(Story("a bad release"), "2", 0, 10), "3", 1, 0)
    story.rings("ReleaseFailing", severity="page", version="3", **SPELLER)
    return story.rings("ReleaseSlow", severity="ticket", version="3", **SPELLER)


def one_release() -> Story:
    """Bad as it is: there is none to compare it with."""
    story = _release(Story("one release"), "3", 1, 0)
    return story.silent("ReleaseFailing", "ReleaseSlow")


def releases_of_plain_models() -> Story:
    """Triton's own count of what failed."""
    story = Story("releases of plain models")
    for version, failing in (("2", 0.0), ("3", 2.5)):
        at = PLAIN | {"version": version}
        story.gains(SUCCESS, at, 10 - failing)
        story.gains(FAILURE, at | {"reason": "BACKEND"}, failing)
    story.says("public_model_version:failures:ratio5m", 0.25, version="3", **ENCODER)
    return story.rings("ReleaseFailing", severity="page", version="3", **ENCODER)


STORIES = (
    two_releases,
    a_bad_release,
    one_release,
    releases_of_plain_models,
    traffic,
    idle,
    failures,
    cancellations,
    dead_detokenizer,
    plain_model,
    native_model,
    latency,
    fast_burn,
    slow_burn,
    over_again,
    slow_first_tokens,
    server_down,
    replicas_up,
    servers_missing,
    stub_gone,
    stub_alive,
    triton_queue_full,
    queue_timeouts,
    kv_full,
)
