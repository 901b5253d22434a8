# SPDX-License-Identifier: Apache-2.0
"""The commented project file that `tritonctl init` writes."""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined

_EXAMPLE = """\
# Editors complete and check this file with the schema that `tritonctl schema` prints.
schema: tritonctl/v1

# Where `tritonctl render` publishes; Triton's --model-repository.
model_repository: model_repository

models:
  # Becomes {{ name }} (the ensemble clients call), {{ name }}_tokenizer, {{ name }}_engine and
  # {{ name }}_detokenizer.
  {{ name | tojson }}:
    task: text_generation
    # A Hugging Face model folder: config.json, *.safetensors, tokenizer.json.
    checkpoint: {{ checkpoint | tojson }}
    engine:
      builder: openvino          # text generation on a CPU
      precision: int8            # fp32, fp16, int8 or int4
      max_batch_size: 32         # sequences processed at once
      # max_seq_len: 2048        # prompt plus answer, tokens; default: the checkpoint's limit
    serving:
      instance_group: [{kind: KIND_CPU, count: 1}]
      # The engine returns text without a {{ name }}_detokenizer step: less CPU per token,
      # but it does not notice when a client of the ensemble disconnects.
      # inline_detokenizer: true
      # The engine performs every step and is the public model: one process, for few cores.
      # fused: true
      # Also serve {{ name }}_unary, with a single response: for clients that cannot stream.
      # unary: true
      # How many requests may wait for the engine; further ones are refused. Priorities and
      # timeouts: priority_levels: 2 (1 goes first), default_timeout_microseconds: 30000000.
      # queue: {max_queue_size: 128}
      # Any field of Triton's ModelConfig, by step:
      # config: {engine: {version_policy: {latest: {num_versions: 2}}}}
    # After a build, compare engine and checkpoint on these prompts (JSON lines with text_input
    # and, if known, the right text_output); fail below min_exact_match.
    # evaluation: {prompts: prompts.jsonl, max_prompts: 200, min_exact_match: 0.95}
    # slo: {ttft_p99_ms: 500, itl_p99_ms: 100, error_rate: 0.001}

# Requests and schedule of `tritonctl loadtest run`; `slo` sets the targets.
# loadtests:
#   chat:
#     model: {{ name | tojson }}
#     requests:                  # several classes are drawn by their weight
#       - name: short
#         prompts: prompts.jsonl # JSON lines with text_input or messages, or a .txt file
#         max_tokens: {lognormal: {median: 64, sigma: 0.5}}   # or a number
#     arrivals: {process: poisson, rate: 20}  # closed, constant, gamma, ramp, spike, steps, trace
#     duration_seconds: 60

# Loopback only; port 0 lets the system choose.
server: {mode: embedded, grpc_port: 8001, http_port: 8000, metrics_port: 8002}

# The same deployment with other settings: `tritonctl build --env exact`.
profiles:
  exact:
    models: { {{- name | tojson }}: {engine: {precision: fp32}}}
"""


def example_project(name: str, checkpoint: str) -> str:
    """Return the text of an example tritonctl.yaml for one model."""
    environment = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - YAML
    return environment.from_string(_EXAMPLE).render(name=name, checkpoint=checkpoint)
