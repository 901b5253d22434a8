# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/metrics.md, made of what engines and frontend publish: `make reference`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python_backends"))

from textlib.triton.engine_metrics import COUNTERS, GAUGES

from tritonctl.frontend import metrics as frontend

_HEAD = """\
<!-- Made by `make reference` from docs/metrics_page.py and
     python_backends/textlib/triton/engine_metrics.py: edits are lost. -->

# Metrics, series, alerts, top

How to start Prometheus and the dashboard: [monitor](../how-to/monitor.md).

## Of the models

What each Python model of a text graph publishes on Triton's metrics port (8002), next to Triton's
own `nv_*` series; the label `model` names the model. Histograms are counters with a label `le`:
`histogram_quantile` and `rate` work on them as usual. They count users' requests only; all other
counters include those that [the shadow](../explanation/rollouts.md#the-shadow) of a rollout sends.

| metric | kind | is |
|---|---|---|
"""
# Triton's own: docs/user_guide/metrics.md of triton-inference-server/server.
_TAIL = """
## Of the response cache

Triton's own series of models with [`serving.cache`](../how-to/cache-answers.md), with the labels
`model` and `version`; a model that is loaded again with other content is another version. Of an
ensemble Triton 2.51 counts none of these, as its version is not 1: `tritonctl top` and the recorded
`model:nv_cache:hit_ratio5m` count the requests that did not reach its steps.

| metric | kind | is |
|---|---|---|
| `nv_cache_num_hits_per_model` | counter | Requests that the cache answered |
| `nv_cache_num_misses_per_model` | counter | Requests that it had no answer to: the model gave it |
| `nv_cache_hit_duration_per_model` | counter | Microseconds of lookups that found an answer |
| `nv_cache_miss_duration_per_model` | counter | Microseconds of others, and of keeping answers |
"""


_FRONTEND = """
## Of the frontend

On `/metrics` of the frontend itself (port 9000), by `tenant` and `model` as the project names them;
requests by `endpoint` and `outcome`, refusals by `reason`, too. What clients send is never a label.
A tenant or model beyond the 500th counts as `other`; `none` is a request that has none.

| metric | kind | is |
|---|---|---|
"""
_RECORDED = """
## Recorded series

Triton labels a series with the running model, `speller_engine`. Scraping adds `public_model`
(`speller`) and `step` (`engine`; `ensemble` for the public model, `model` for a model without
steps or a fused one). Recorded `model:…` series are per step, `public_model:…` series are what
clients see, summed over replicas.

| series | value |
|---|---|
| `model:nv_inference_request_success:rate5m` | requests/s of each step |
| `model:nv_inference_queue:share5m` | share of a step's time in Triton's queue |
| `model:nv_inference_batch:factor5m` | inferences per execution; 1: no batching |
| `model:nv_cache:hit_ratio5m` | share of requests that the response cache answered |
| `public_model:requests:rate5m`, `:answers:`, `:failures:`, `:cancelled:` | requests/s: all, answered, failed, cancelled |
| `public_model:errors:rate5m` | failures by `reason`, each once |
| `public_model:output_tokens:rate5m`, `:input_tokens:` | tokens/s |
| `public_model:tokens_per_response:ratio5m` | tokens per response; 1 while the server keeps up |
| `public_model:tritonctl_time_to_first_token_seconds:quantile5m` | TTFT p50, p90, p99; also `inter_token_latency`, `request_duration` |
| `public_model:kv_blocks:used_ratio` | the fullest KV cache of the replicas |
| `public_model:prefix_cache:hit_ratio5m` | prompt blocks found in the cache (TensorRT-LLM only) |
| `public_model_version:answers:rate5m`, `:failures:ratio5m`, `:tritonctl_time_to_first_token_seconds:median5m` | per release: answers/s, share of failures, median TTFT |
| `public_model:slo_bad_ratio:rate…` | share of events that miss the SLO, over seven windows |

Latencies are measured in the engine: they exclude tokenizer, Triton's queue and network.
`tritonctl loadtest run` measures what clients see. Models of Triton's own backends and of the C++
`tensorrtllm` backend have Triton's series only. Engines publish at most ten times a second.

## Failures

Triton 2.51 does not count each failed request once. Measured per request:

| event | ensemble's `request_failure` | the step's counters |
|---|---|---|
| a Python step answers with an error | OTHER, **2** | `request_success` 1 |
| a tensor is missing, or the stub of tokenizer or engine is dead | OTHER, 2 | BACKEND 1 |
| the detokenizer's stub is dead | OTHER, **1** | BACKEND 1 per response |
| Triton's queue is full | OTHER, 2 | none |
| timeout in Triton's queue | OTHER, 2 | REJECTED 1 |
| the client disconnected | OTHER, **1** | detokenizer: CANCELED 1 |

So Python steps count their errors in `tritonctl_errors_total{reason}`, and the rules use
`(failures of the ensemble - CANCELED of the steps) / 2`, or the detokenizer's losses if those are
more. `unattributed` failures were counted by no step: mostly a full Triton queue. `invalid`
requests are failures but spend no error budget. With `inline_detokenizer` disconnected clients
count as answered.

Triton keeps the last values of a dead stub and still calls the model ready. tritonctl's supervisor
stops such a server; elsewhere watch `tritonctl_uptime_seconds_total`, which stands still.

## Alerts

| alert | severity | fires when |
|---|---|---|
| `TritonServerDown` / `TritonServerMissing` | page | a server does not answer for 1 min / Prometheus finds none for 5 min |
| `TritonReplicaMissing` | ticket | fewer than `docker.replicas` servers answer for 2 min |
| `TritonStubGone` | page | a Python model's process makes no progress for 1.5 min |
| `TritonErrorBudgetBurn` | page, ticket | the SLO budget is spent too fast |
| `TritonQueueFull` | ticket | requests are refused, or time out in the queue, for 2 min |
| `TritonKvCacheFull` | ticket | a KV cache is over 95 % full for 5 min |
| `ReleaseFailing` | page | one of two versions fails more than twice as many requests plus 1 % for 1 min |
| `ReleaseSlow` | ticket | one of two versions has 1.5 times the median TTFT for 2 min |
| `GatewayDown`, `FrontendDown` | page | Envoy, the frontend does not answer for 1 min |
| `FrontendFailing` | ticket | over 1 % of the frontend's requests fail on the server side for 5 min |

Burn rates follow chapter 5 of Google's SRE workbook: 14.4 times the 30-day budget over 1 h and
5 min, 6 times over 6 h and 30 min (page); 3 times over 1 d and 2 h, once over 3 d and 6 h (ticket).
`slo.error_rate` is the budget of failures; latency targets have a budget of 1 % of events,
interpolated between histogram bounds. With few requests an hour, one failure can page: set a larger
`error_rate`.

## `tritonctl top`

A live view of the same metrics page; nothing is installed on the server.

![tritonctl top under load](../images/top.svg)

```sh
tritonctl top                              # the project's server; Ctrl-C ends it
tritonctl top --metrics-url 10.0.0.7:8002  # the metrics of any Triton, also one not ours
tritonctl top --once                       # one interval, then end
tritonctl top --json --interval 5 >> top.jsonl
```

| column | is | from |
|---|---|---|
| req/s | requests answered per second | `nv_inference_request_success` |
| failed/s | failed requests per second; the reasons stand below the table | `nv_inference_request_failure`, `tritonctl_errors_total` |
| cache | share of requests that Triton's response cache answered | `nv_cache_num_hits_per_model`, `nv_cache_num_misses_per_model` |
| TTFT ms, ITL ms, E2E ms | median / 99th percentile of the time to first token, between tokens, of whole answers | the engine's histograms |
| tok/s | tokens sent per second | the engine |
| wait | requests in Triton's queue and in the engine's, mean of the interval | `nv_inference_pending_request_count`, the engine |
| queue | share of the request time in Triton's queue | `nv_inference_queue_duration_us` / `nv_inference_request_duration_us` |
| batch | inferences per execution | `nv_inference_count` / `nv_inference_exec_count` |
| active | streams that the engine advances, mean of the interval | the engine |
| KV | share of the KV cache's blocks in use | the engine |
| ms/req | mean time of a request; of an engine that streams, until it has accepted the request | `nv_inference_request_duration_us` |
| inst | instances | `model_instance` labels, else the rendered `config.pbtxt` |

`·`: the server does not say. On a narrow terminal the last columns are left out. A 99th percentile
with `~` is of fewer than 500 values, one with `>` lies beyond the histogram's last bound.

- Rates and times are of the last ten seconds (`--window`); with `--json` of the interval. `--sort`
  is by `requests`, `failed`, `ttft`, `waiting` or `name`.
- An ensemble's row has the queue, texts and cache of its steps, which stand below it. Without the
  project's rendered repository each model has a row.
- A stub that was killed leaves its last values. Its model is named as showing no sign of life when
  its `tritonctl_uptime_seconds_total` stands still for the window, at least four seconds.
- Engines' series come from this project, NVIDIA's TensorRT-LLM backend (`nv_trt_llm_*`), vLLM
  (`vllm:*`), and Triton's `nv_inference_first_response_histogram_ms`. CPU and memory of the server's
  processes are shown where they run on this machine.
- A server that goes away is shown with its last figures until it is back; at the start it is an
  error, exit code 7. A server or model that was loaded again counts from zero: it is named, and no
  rate becomes negative.

With `--json` each line is one object: `time`, `url`, `problem` (null when all is well), `seconds`,
`server`, `models`, each model with its `steps`. A line with a problem has no figures.
"""  # noqa: E501 - tables


def page() -> str:
    """The page: series of engines, cache and frontend; recorded series, alerts, top."""
    rows = [
        f"| `{name}` | {kind} | {text} |"
        for kind, table in (("gauge", GAUGES), ("counter", COUNTERS))
        for name, text in table.items()
    ]
    parts = ("\n".join(rows), _TAIL + _FRONTEND + "\n".join(_frontend()), _RECORDED)
    return _HEAD + "\n".join(parts)


def _frontend() -> list[str]:
    counters = [(f"{name}_total", "counter", text) for name, text in frontend.COUNTERS.items()]
    gauges = [(name, "gauge", text) for name, text in frontend.GAUGES.items()]
    histograms = [(name, "histogram", text) for name, text in frontend.HISTOGRAMS.items()]
    return [
        f"| `{name}` | {kind} | {text} |" for name, kind, text in counters + gauges + histograms
    ]


if __name__ == "__main__":
    sys.stdout.write(page())
