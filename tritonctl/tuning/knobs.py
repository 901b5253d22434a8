# SPDX-License-Identifier: Apache-2.0
"""The knobs of a model, as its task, its engine and its load allow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.engines.artefacts.manifest import Manifest
from tritonctl.engines.build.engine import built_engines
from tritonctl.engines.build.requests import model_named
from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Model, Project
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.engine_queue import bound_in_engine, triton_decides
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    ensemble_for,
)
from tritonctl.repository.interfaces import step_backends
from tritonctl.repository.steps import step_models
from tritonctl.tuning.overlays import (
    doubling,
    halving,
    in_serving,
    of_parameter,
    of_step,
    with_base,
)
from tritonctl.tuning.space import (
    DELAY,
    INSTANCES,
    MAX_BATCH,
    PLACES,
    RUN_TOKENS,
    RUNS,
    THREADS,
    Knob,
    Space,
)
from tritonctl.tuning.step_knobs import StepKnobs
from tritonctl.tuning.trials import Value


def space_of(project: Project, name: str, priorities: int, cores: int) -> Space:
    """All knobs of a model with the engine that is built.

    priorities: the lowest priority that the load uses; 0 when it uses none.
    """
    model = model_named(project, name)
    if model.serving.cache:
        raise ConfigurationError(
            f"models.{name}.serving.cache: answers from the cache say nothing about other settings",
            remedy="set `cache: false`, tune, and set it again",
        )
    artefacts = built_engines(project)
    manifest = artefacts[name].manifest
    ensemble, source = ensemble_for(model.task, project.root)
    backends: Mapping[str, PythonBackend] = {}
    if model.serving.backend in (None, "python"):
        backends = step_backends(ensemble, source, manifest.python_backend, project)
    steps = step_models(project, name)
    of_model = _Knobs(name, steps[ENGINE_STEP], model, manifest, backends, cores)
    knobs = [*of_model.of_engine(), *of_model.of_queue(priorities)]
    if ensemble.kind == "ensemble":
        knobs += StepKnobs(name, of_model.engine, model, backends, cores).of(ensemble)
    turned = tuple(knob for knob in knobs if len(knob.values) > 1)
    return Space(project, name, turned, cores, artefacts)


@dataclass(frozen=True)
class _Knobs:
    """Makes the knobs of one model; `engine` is the name of its engine step in Triton."""

    name: str
    engine: str
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

    def of_engine(self) -> Iterator[Knob]:
        """Knobs of the step that computes."""
        yield self._instances()
        backend = self.backends.get(ENGINE_STEP)
        if backend is None or not backend.decoupled:
            yield self._max_batch_size()
            yield self._queue_delay()
        if "max_num_tokens" in self._parameters and self.model.task != "tensors":
            yield self._run_tokens()
        if RUNS in self._parameters and self._on_cpu:
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
            with_base(base, doubling(1, max(2, self.cores) if self._on_cpu else 4)),
            base,
            overlay,
            self.engine,
            "runs several batches at once; each instance needs its own memory, all share the cores",
            frozenset({"queue", "compute"}),
        )

    def _max_batch_size(self) -> Knob:
        limit = self.model.engine.max_batch_size
        raw = self.model.serving.config.get(ENGINE_STEP, {})
        base = int(raw.get("max_batch_size", limit))
        return Knob(
            MAX_BATCH,
            with_base(base, doubling(1, limit)),
            base,
            lambda value: of_step(ENGINE_STEP, {"max_batch_size": value}),
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
            with_base(base, steps),
            base,
            lambda value: in_serving("dynamic_batching", DELAY, value),
            self.engine,
            "waiting makes batches larger, and every request that much later",
            frozenset({"batch"}),
        )

    def _run_tokens(self) -> Knob:
        longest = self.manifest.result.limits.max_seq_len or 0
        chosen = self.manifest.result.limits.max_num_tokens or self.model.engine.max_num_tokens
        base = int(self._parameter(RUN_TOKENS, chosen or 0))
        bounds = {longest, 4 * longest, 16 * longest, base} - {0}
        return Knob(
            f"engine.{RUN_TOKENS}",
            (*sorted(bounds), 0),
            base,
            lambda value: of_parameter(RUN_TOKENS, str(value)),
            self.engine,
            "tokens in one run (0: any number): short texts wait less for long ones",
            frozenset({"queue", "batch"}),
        )

    def _parallel_runs(self) -> Knob:
        serving = self.model.serving
        # The engine has no more, either.
        most = max(1, self.cores // sum(group.count for group in serving.instance_group))
        base = min(serving.most_parallel_runs, most)
        return Knob(
            RUNS,
            with_base(base, doubling(1, most)),
            base,
            lambda value: {"serving": {RUNS: value}},
            self.engine,
            "runs at a time share the cores: none waits for another, but each takes longer",
            frozenset({"queue"}),
        )

    def _session(self) -> Iterator[Knob]:
        session = self.model.serving.session
        base = session.intra_op_num_threads
        yield Knob(
            THREADS[0],
            self._threads(base),
            base,
            lambda value: in_serving("session", "intra_op_num_threads", value),
            self.engine,
            "threads inside an operator (0: one per core) finish a batch sooner, but instances "
            "then compete for cores",
            frozenset({"compute"}),
        )
        yield Knob(
            "session.allow_spinning",
            (False, True),
            session.allow_spinning,
            lambda value: in_serving("session", "allow_spinning", value),
            self.engine,
            "threads that spin start sooner, but take cores from everything else",
            frozenset({"compute"}),
        )

    def _scheduler(self) -> Iterator[Knob]:
        limits = self.manifest.result.limits
        for key, most, lowest, reason in (
            (
                PLACES.removeprefix("engine."),
                limits.max_batch_size,
                1,
                "sequences in one step: more answers at once, but a longer step for each token",
            ),
            (
                "max_num_batched_tokens",
                limits.max_num_tokens or 0,
                32,
                "tokens in one step: long prompts are read sooner, but delay answers under way",
            ),
        ):
            if not most:
                continue
            base = int(self._parameter(key, most))
            yield Knob(
                f"engine.{key}",
                with_base(base, halving(most, lowest)),
                base,
                lambda value, key=key: of_parameter(key, str(value)),  # type: ignore[misc]
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
            "reads the common beginning of prompts once; prompts without one pay for the search",
            frozenset({"compute"}),
        )
        if limits.max_seq_len and "num_kv_blocks" in self._parameters:
            yield self._kv_tokens(limits.max_batch_size * limits.max_seq_len, limits.max_seq_len)

    def _kv_tokens(self, default: int, longest: int) -> Knob:
        base = self.model.serving.kv_cache_tokens or default
        candidates = [size for size in (default // 4, default // 2, default) if size >= longest]
        return Knob(
            "kv_cache_tokens",
            with_base(base, candidates),
            base,
            lambda value: {"serving": {"kv_cache_tokens": value}},
            self.engine,
            "a smaller pool saves memory; in one that is too small requests wait or fail",
            frozenset({"memory"}),
        )

    def _openvino_threads(self) -> Knob:
        properties = json.loads(
            self._parameter("properties", json.dumps(self.manifest.result.runtime["properties"]))
        )
        base = int(properties.get("INFERENCE_NUM_THREADS", 0))

        def overlay(value: Value) -> dict[str, Any]:
            changed = {**properties, "INFERENCE_NUM_THREADS": value}
            return of_parameter("properties", json.dumps(changed, sort_keys=True))

        return Knob(
            THREADS[1],
            self._threads(base),
            base,
            overlay,
            self.engine,
            "threads of a step (0: one per core): fewer leave cores to tokenizer and detokenizer",
            frozenset({"compute"}),
        )

    def _threads(self, base: int) -> tuple[Value, ...]:
        """Numbers of threads; 0, one per core, comes last."""
        threads = [*doubling(1, self.cores - 1), 0]
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

    def of_queue(self, priorities: int) -> Iterator[Knob]:
        """Knobs of the queue in front of the engine."""
        queue, limit = self.model.serving.queue, self.model.engine.max_batch_size
        base = queue.max_queue_size
        if base is None:
            base = 4 * limit if triton_decides(queue) else bound_in_engine(queue, limit)
        yield Knob(
            "queue.max_queue_size",
            with_base(base, (limit, 4 * limit, 16 * limit)),
            base,
            lambda value: in_serving("queue", "max_queue_size", value),
            self.engine,
            "a short queue refuses requests that would be too late anyway",
            frozenset({"overload"}),
        )
        if priorities:
            base = queue.priority_levels
            yield Knob(
                "queue.priority_levels",
                with_base(base, (0, priorities)),
                base,
                lambda value: in_serving("queue", "priority_levels", value),
                self.engine,
                "urgent requests overtake others; Triton's own queue costs some time",
                frozenset({"queue"}),
            )

    def _parameter(self, key: str, default: Any) -> Any:
        """A parameter that the project sets for the engine step, or the default."""
        raw = self.model.serving.config.get(ENGINE_STEP, {}).get("parameters", {})
        return raw.get(key, {}).get("string_value", default)
