# SPDX-License-Identifier: Apache-2.0
"""Build the knobs of the steps around a model's engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tritonctl.project.schema import Model
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.ensembles import (
    DETOKENIZER,
    ENGINE_STEP,
    TOKENIZER,
    Ensemble,
    step_model_name,
)
from tritonctl.tuning.overlays import doubled_values, include_base, step_overlay
from tritonctl.tuning.space import (
    DELAY,
    DETOKENIZER_DELAY,
    FUSED,
    INLINE,
    TOKENIZERS,
    Knob,
)


@dataclass(frozen=True)
class StepKnobs:
    """Builds the step knobs of one model."""

    name: str
    engine: str  # name of the engine step in Triton
    model: Model
    backends: Mapping[str, PythonBackend]
    cores: int

    def ensemble_knobs(self, ensemble: Ensemble) -> Iterator[Knob]:
        """Yield the knobs of the ensemble's steps."""
        backend = self.backends.get(ENGINE_STEP)
        inlines = {*backend.inlines} if backend is not None else set()
        surrounding_steps = {
            each.name for step, each in self.backends.items() if step != ENGINE_STEP
        }
        if surrounding_steps and surrounding_steps <= inlines:
            yield self._merge_switch(
                FUSED, "one process for all steps: less CPU per response, earlier first token"
            )
        if self.model.serving.fused:
            return
        if TOKENIZER in ensemble.steps:
            yield self._tokenizer_instances()
        if DETOKENIZER not in ensemble.steps:
            return
        if DETOKENIZER in inlines:
            yield self._merge_switch(
                INLINE,
                "two steps instead of three take a quarter less CPU per token, but do not detect "
                "disconnected clients",
            )
        if not self.model.serving.inline_detokenizer:
            yield self._detokenizer_delay()

    def _merge_switch(self, name: str, reason: str) -> Knob:
        """Return the knob of a `serving` switch that moves steps into the engine."""
        return Knob(
            name,
            (False, True),
            getattr(self.model.serving, name),
            lambda value: {"serving": {name: value}},
            self.engine,
            reason,
            frozenset({"compute"}),
            restart=True,
        )

    def _tokenizer_instances(self) -> Knob:
        groups = self.model.serving.config.get(TOKENIZER, {}).get("instance_group", [{}])
        base = int(groups[0].get("count", 1))
        return Knob(
            TOKENIZERS,
            include_base(base, doubled_values(1, self.cores)),
            base,
            lambda count: step_overlay(
                TOKENIZER, {"instance_group": [{"kind": "KIND_CPU", "count": count}]}
            ),
            step_model_name(self.name, TOKENIZER),
            "tokenises several prompts at once",
            frozenset({"queue", "compute"}),
        )

    def _detokenizer_delay(self) -> Knob:
        default_delay = (
            self.backends[DETOKENIZER].max_queue_delay_microseconds if self.backends else 0
        )
        configured_delay = self.model.serving.dynamic_batching.max_queue_delay_microseconds
        raw = self.model.serving.config.get(DETOKENIZER, {}).get("dynamic_batching", {})
        base = int(raw.get(DELAY, default_delay if configured_delay is None else configured_delay))
        return Knob(
            DETOKENIZER_DELAY,
            include_base(base, (0, 500, 1500, 5000)),
            base,
            lambda value: step_overlay(DETOKENIZER, {"dynamic_batching": {DELAY: value}}),
            step_model_name(self.name, DETOKENIZER),
            "detokenises several streams in one batch: less CPU, but slightly later text",
            frozenset({"batch"}),
        )
