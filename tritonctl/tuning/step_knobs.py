# SPDX-License-Identifier: Apache-2.0
"""The knobs of the steps around a model's engine."""

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
from tritonctl.tuning.overlays import doubling, of_step, with_base
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
    """Makes them for one model; `engine` is the name of its engine step in Triton."""

    name: str
    engine: str
    model: Model
    backends: Mapping[str, PythonBackend]
    cores: int

    def of(self, ensemble: Ensemble) -> Iterator[Knob]:
        """Those that the ensemble has."""
        backend = self.backends.get(ENGINE_STEP)
        inlines = {*backend.inlines} if backend is not None else set()
        others = {each.name for step, each in self.backends.items() if step != ENGINE_STEP}
        if others and others <= inlines:
            yield self._fewer_steps(
                FUSED, "one process for all steps: less CPU for each answer, the first one earlier"
            )
        if self.model.serving.fused:
            return
        if TOKENIZER in ensemble.steps:
            yield self._tokenizer_instances()
        if DETOKENIZER not in ensemble.steps:
            return
        if DETOKENIZER in inlines:
            yield self._fewer_steps(
                INLINE,
                "two steps instead of three take a quarter less CPU per token, but do not notice "
                "that a client has left",
            )
        if not self.model.serving.inline_detokenizer:
            yield self._detokenizer_delay()

    def _fewer_steps(self, name: str, reason: str) -> Knob:
        """A switch of `serving` that moves steps into the engine; the knob has its name."""
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
            with_base(base, doubling(1, self.cores)),
            base,
            lambda count: of_step(
                TOKENIZER, {"instance_group": [{"kind": "KIND_CPU", "count": count}]}
            ),
            step_model_name(self.name, TOKENIZER),
            "tokenises several prompts at once",
            frozenset({"queue", "compute"}),
        )

    def _detokenizer_delay(self) -> Knob:
        own = self.backends[DETOKENIZER].max_queue_delay_microseconds if self.backends else 0
        chosen = self.model.serving.dynamic_batching.max_queue_delay_microseconds
        raw = self.model.serving.config.get(DETOKENIZER, {}).get("dynamic_batching", {})
        base = int(raw.get(DELAY, own if chosen is None else chosen))
        return Knob(
            DETOKENIZER_DELAY,
            with_base(base, (0, 500, 1500, 5000)),
            base,
            lambda value: of_step(DETOKENIZER, {"dynamic_batching": {DELAY: value}}),
            step_model_name(self.name, DETOKENIZER),
            "turns tokens of several streams into text together: less CPU, text a little later",
            frozenset({"batch"}),
        )
