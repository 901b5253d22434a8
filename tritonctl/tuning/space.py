# SPDX-License-Identifier: Apache-2.0
"""The search space: the knobs of a model's settings, and their candidates.

A knob knows what it writes into `models.<name>` of tritonctl.yaml, so that the measured settings
are those that are written back. None needs a new engine: candidates stay within the artefact's
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritonctl.engines.build.engine import Artefact
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import Project
from tritonctl.tuning.trials import Settings, Value

# Names of the knobs that the queueing estimate and `Space.allowed` use.
INSTANCES, MAX_BATCH, PLACES = "engine.instances", "engine.max_batch_size", "engine.max_num_seqs"
DELAY, INLINE, FUSED = "max_queue_delay_microseconds", "inline_detokenizer", "fused"
DETOKENIZER_DELAY = "detokenizer.max_queue_delay_microseconds"
TOKENIZERS = "tokenizer.instances"
RUN_TOKENS, RUNS = "max_num_tokens", "parallel_runs"
THREADS = ("session.intra_op_num_threads", "engine.INFERENCE_NUM_THREADS")
# What each of these leaves no step for.
_GONE = {FUSED: (INLINE, TOKENIZERS, DETOKENIZER_DELAY), INLINE: (DETOKENIZER_DELAY,)}
# With more than twice as many busy threads as cores, threads only wait for each other.
_CROWDED = 2


@dataclass(frozen=True)
class Knob:
    """A setting that may change.

    values: candidates in natural order, with `base`, today's value. overlay: what a value writes
    below `models.<name>`. model: the model whose load it changes. relieves: what a higher value
    should relieve: queue (waiting), compute (time of a batch), batch (small batches), memory.
    restart: it changes files of the repository, too, which a loaded model does not see.
    """

    name: str
    values: tuple[Value, ...]
    base: Value
    overlay: Callable[[Value], dict[str, Any]]
    model: str
    reason: str
    relieves: frozenset[str] = frozenset()
    restart: bool = False


@dataclass(frozen=True)
class Space:
    """The knobs of one model of a project, on a machine with `cores` cores."""

    project: Project
    model: str
    knobs: tuple[Knob, ...]
    cores: int
    artefacts: Mapping[str, Artefact]  # of the project: none of the knobs needs another

    @property
    def base(self) -> dict[str, Value]:
        """Today's settings."""
        return {knob.name: knob.base for knob in self.knobs}

    def overlay(self, settings: Settings) -> dict[str, Any]:
        """What settings change in `models.<name>`; {} for today's."""
        merged: dict[str, Any] = {}
        for knob in self.knobs:
            value = settings.get(knob.name, knob.base)
            if value != knob.base:
                merged = deep_merge(merged, knob.overlay(value))
        return merged

    def changed(self, settings: Settings) -> dict[str, Value]:
        """The settings that are not today's."""
        base = self.base
        return {name: value for name, value in settings.items() if base.get(name) != value}

    def tuned(self, settings: Settings) -> Project:
        """The project with these settings. Raises ValidationError for impossible ones."""
        return overlaid(self.project, {"models": {self.model: self.overlay(settings)}})

    def allowed(self, settings: Settings) -> bool:
        """Whether it makes sense to load the model with them."""
        gone = next((_GONE[name] for name in _GONE if settings.get(name)), ())
        if any(settings.get(name) != self.base.get(name) for name in gone):
            return False  # of a step that the model does not have then
        threads = next((int(settings[name]) for name in THREADS if name in settings), 1)
        wanted = int(settings.get(INSTANCES, 1)) * (threads or self.cores)
        today = int(self.base.get(INSTANCES, 1)) * self.cores
        return wanted <= max(_CROWDED * self.cores, today)

    def only(self, names: Sequence[str]) -> Space:
        """The space of these knobs alone."""
        kept = tuple(knob for knob in self.knobs if knob.name in names)
        return replace(self, knobs=kept)


def overlaid(project: Project, over: Mapping[str, Any]) -> Project:
    """A project with `over` merged over its settings."""
    # Unset fields stay unset: some defaults depend on that.
    data = project.model_dump(by_alias=True, exclude_unset=True)
    return type(project).at(project.root, deep_merge(data, over))
