# SPDX-License-Identifier: Apache-2.0
"""Build the knobs of a model for its task, engine and load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.engines.artefacts.manifest import Manifest
from tritonctl.engines.builds.engine import built_engines
from tritonctl.engines.builds.requests import model_named
from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Model, Project
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.engine_queue import engine_queue_bound, needs_triton_queue
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    ensemble_for,
)
from tritonctl.repository.interfaces import step_backends
from tritonctl.repository.steps import step_models
from tritonctl.tuning.overlays import (
    doubled_values,
    halved_values,
    include_base,
    parameter_overlay,
    serving_overlay,
    step_overlay,
)
from tritonctl.tuning.space import (
    DELAY,
    INSTANCES,
    MAX_BATCH,
    MAX_SEQUENCES,
    PARALLEL_RUNS,
    RUN_TOKENS,
    THREADS,
    Knob,
    SearchSpace,
)
from tritonctl.tuning.step_knobs import StepKnobs
from tritonctl.tuning.trials import Value


def build_space(project: Project, name: str, priorities: int, cores: int) -> SearchSpace:
    """Build the search space of a model with its built engine.

    priorities: the lowest priority that the load uses; 0 without priorities.
    """
    model = model_named(project, name)
    if model.serving.cache:
        raise ConfigurationError(
            f"models.{name}.serving.cache: cached responses hide the effect of settings",
            remedy="set `cache: false`, tune, and enable it again",
        )
    artefacts = built_engines(project)
    manifest = artefacts[name].manifest
    ensemble, source = ensemble_for(model.task, project.root)
    backends: Mapping[str, PythonBackend] = {}
    if model.serving.backend in (None, "python"):
        backends = step_backends(ensemble, source, manifest.python_backend, project)
    steps = step_models(project, name)
    model_knobs = _ModelKnobs(name, steps[ENGINE_STEP], model, manifest, backends, cores)
    knobs = [*model_knobs.engine_knobs(), *model_knobs.queue_knobs(priorities)]
    if ensemble.kind == "ensemble":
        knobs += StepKnobs(name, model_knobs.engine, model, backends, cores).ensemble_knobs(
            ensemble
        )
    variable_knobs = tuple(knob for knob in knobs if len(knob.values) > 1)
    return SearchSpace(project, name, variable_knobs, cores, artefacts)


@dataclass(frozen=True)
class _ModelKnobs:
    """Builds the knobs of one model."""

    name: str
    engine: str  # name of the engine step in Triton
    model: Model
    manifest: Manifest
    backends: Mapping[str, PythonBackend]
    cores: int

    @property
    def _parameters(self) -> Mapping[str, str]:
        backend = self.backends.get(ENGINE_STEP)
        return backend.parameters if backend else {}

    @property
    def _on_cpu(self) -> bool:
        return self.model.serving.instance_group[0].kind == "KIND_CPU"

    def engine_knobs(self) -> Iterator[Knob]:
        """Yield the knobs of the engine step."""
        yield self._instances()
        backend = self.backends.get(ENGINE_STEP)
        if self.model.engine.max_batch_size and (backend is None or not backend.decoupled):
            yield self._max_batch_size()
            yield self._queue_delay()
        if "max_num_tokens" in self._parameters and self.model.task != "tensors":
            yield self._run_tokens()
        if PARALLEL_RUNS in self._parameters and self._on_cpu:
            yield self._parallel_runs()
        if "session" in self._parameters:
            yield from self._session()
        if "max_num_seqs" in self._parameters:
            yield from self._scheduler()
        if "properties" in self._parameters:
            yield self._openvino_threads()
        if "kv_cache_config" in self._parameters:
            yield self._kv_share()

    def _instances(self) -> Knob:
        groups = [
            group.model_dump(exclude_unset=True) for group in self.model.serving.instance_group
        ]
        base = self.model.serving.instance_group[0].count

        def overlay(value: Value) -> dict[str, Any]:
            changed = [{**groups[0], "count": value}, *groups[1:]]
            return {"serving": {"instance_group": changed}}

        return Knob(
            INSTANCES,
            include_base(base, doubled_values(1, max(2, self.cores) if self._on_cpu else 4)),
            base,
            overlay,
            self.engine,
            "runs several batches at once; each instance needs memory, and all share the cores",
            frozenset({"queue", "compute"}),
        )

    def _max_batch_size(self) -> Knob:
        limit = self.model.engine.max_batch_size
        raw = self.model.serving.config.get(ENGINE_STEP, {})
        base = int(raw.get("max_batch_size", limit))
        return Knob(
            MAX_BATCH,
            include_base(base, doubled_values(1, limit)),
            base,
            lambda value: step_overlay(ENGINE_STEP, {"max_batch_size": value}),
            self.engine,
            "larger batches do more work per second, but each takes longer",
            frozenset({"queue", "batch"}),
        )

    def _queue_delay(self) -> Knob:
        base = self.model.serving.dynamic_batching.max_queue_delay_microseconds or 0
        limit = self.model.slo.e2e_p99_ms or self.model.slo.ttft_p99_ms or 100.0
        steps = [us for us in (0, 500, 1000, 2000, 5000, 10_000, 20_000) if us <= limit * 1000 / 2]
        return Knob(
            DELAY,
            include_base(base, steps),
            base,
            lambda value: serving_overlay("dynamic_batching", DELAY, value),
            self.engine,
            "waiting makes batches larger, but delays every request",
            frozenset({"batch"}),
        )

    def _run_tokens(self) -> Knob:
        max_length = self.manifest.result.limits.max_seq_len or 0
        chosen = self.manifest.result.limits.max_num_tokens or self.model.engine.max_num_tokens
        base = int(self._parameter(RUN_TOKENS, chosen or 0))
        bounds = {max_length, 4 * max_length, 16 * max_length, base} - {0}
        return Knob(
            f"engine.{RUN_TOKENS}",
            (*sorted(bounds), 0),
            base,
            lambda value: parameter_overlay(RUN_TOKENS, str(value)),
            self.engine,
            "tokens in one run (0: unlimited): short texts wait less for long ones",
            frozenset({"queue", "batch"}),
        )

    def _parallel_runs(self) -> Knob:
        serving = self.model.serving
        # The engine has the same limit.
        max_runs = max(1, self.cores // sum(group.count for group in serving.instance_group))
        base = min(serving.max_parallel_runs, max_runs)
        return Knob(
            PARALLEL_RUNS,
            include_base(base, doubled_values(1, max_runs)),
            base,
            lambda value: {"serving": {PARALLEL_RUNS: value}},
            self.engine,
            "concurrent runs share the cores: they do not queue, but each takes longer",
            frozenset({"queue"}),
        )

    def _session(self) -> Iterator[Knob]:
        session = self.model.serving.session
        base = session.intra_op_num_threads
        yield Knob(
            THREADS[0],
            self._threads(base),
            base,
            lambda value: serving_overlay("session", "intra_op_num_threads", value),
            self.engine,
            "more threads per operator (0: one per core) finish a batch sooner, but instances "
            "compete for cores",
            frozenset({"compute"}),
        )
        yield Knob(
            "session.allow_spinning",
            (False, True),
            session.allow_spinning,
            lambda value: serving_overlay("session", "allow_spinning", value),
            self.engine,
            "spinning threads start sooner, but take cores from everything else",
            frozenset({"compute"}),
        )

    def _scheduler(self) -> Iterator[Knob]:
        limits = self.manifest.result.limits
        for key, max_value, min_value, reason in (
            (
                MAX_SEQUENCES.removeprefix("engine."),
                limits.max_batch_size,
                1,
                "sequences per step: more concurrent responses, but longer steps per token",
            ),
            (
                "max_num_batched_tokens",
                limits.max_num_tokens or 0,
                32,
                "tokens per step: faster prefill of long prompts, but delays running responses",
            ),
        ):
            if not max_value:
                continue
            base = int(self._parameter(key, max_value))
            yield Knob(
                f"engine.{key}",
                include_base(base, halved_values(max_value, min_value)),
                base,
                lambda value, key=key: parameter_overlay(key, str(value)),  # type: ignore[misc]
                self.engine,
                reason,
                frozenset({"queue", "batch"}),
            )
        yield Knob(
            "enable_prefix_caching",
            (False, True),
            self.model.serving.enable_prefix_caching,
            lambda value: {"serving": {"enable_prefix_caching": value}},
            self.engine,
            "computes the common prefix of prompts once; other prompts pay for the lookup",
            frozenset({"compute"}),
        )
        if limits.max_seq_len and "num_kv_blocks" in self._parameters:
            yield self._kv_tokens(limits.max_batch_size * limits.max_seq_len, limits.max_seq_len)

    def _kv_tokens(self, default: int, max_length: int) -> Knob:
        base = self.model.serving.kv_cache_tokens or default
        candidates = [size for size in (default // 4, default // 2, default) if size >= max_length]
        return Knob(
            "kv_cache_tokens",
            include_base(base, candidates),
            base,
            lambda value: {"serving": {"kv_cache_tokens": value}},
            self.engine,
            "a smaller pool saves memory; if it is too small, requests wait or fail",
            frozenset({"memory"}),
        )

    def _openvino_threads(self) -> Knob:
        properties = json.loads(
            self._parameter("properties", json.dumps(self.manifest.result.runtime["properties"]))
        )
        base = int(properties.get("INFERENCE_NUM_THREADS", 0))

        def overlay(value: Value) -> dict[str, Any]:
            changed = {**properties, "INFERENCE_NUM_THREADS": value}
            return parameter_overlay("properties", json.dumps(changed, sort_keys=True))

        return Knob(
            THREADS[1],
            self._threads(base),
            base,
            overlay,
            self.engine,
            "threads per step (0: one per core): fewer leave cores to tokenizer and detokenizer",
            frozenset({"compute"}),
        )

    def _threads(self, base: int) -> tuple[Value, ...]:
        """Return thread counts; 0, one per core, comes last."""
        threads = [*doubled_values(1, self.cores - 1), 0]
        return tuple(threads) if base in threads else (base, *threads)

    def _kv_share(self) -> Knob:
        runtime = self.model.serving.runtime.get("kv_cache_config", {})
        base = str(runtime.get("free_gpu_memory_fraction", "0.9"))
        return Knob(
            "runtime.kv_cache_config.free_gpu_memory_fraction",
            tuple(sorted({base, "0.8", "0.9", "0.95"})),
            base,
            lambda value: {
                "serving": {
                    "runtime": {"kv_cache_config": {"free_gpu_memory_fraction": float(value)}}
                }
            },
            self.engine,
            "share of the GPU's free memory for the KV cache: more sequences at once",
            frozenset({"queue", "memory"}),
        )

    def queue_knobs(self, priorities: int) -> Iterator[Knob]:
        """Yield the knobs of the queue in front of the engine."""
        queue, limit = self.model.serving.queue, self.model.engine.max_batch_size
        base = queue.max_queue_size
        if base is None:
            base = 4 * limit if needs_triton_queue(queue) else engine_queue_bound(queue, limit)
        yield Knob(
            "queue.max_queue_size",
            include_base(base, (limit, 4 * limit, 16 * limit)),
            base,
            lambda value: serving_overlay("queue", "max_queue_size", value),
            self.engine,
            "a short queue rejects requests that would be too late anyway",
            frozenset({"overload"}),
        )
        if priorities:
            base = queue.priority_levels
            yield Knob(
                "queue.priority_levels",
                include_base(base, (0, priorities)),
                base,
                lambda value: serving_overlay("queue", "priority_levels", value),
                self.engine,
                "urgent requests overtake others; Triton's own queue costs some time",
                frozenset({"queue"}),
            )

    def _parameter(self, key: str, default: Any) -> Any:
        """Return the project's parameter for the engine step, or the default."""
        raw = self.model.serving.config.get(ENGINE_STEP, {}).get("parameters", {})
        return raw.get(key, {}).get("string_value", default)
