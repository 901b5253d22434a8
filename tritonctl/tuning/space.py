# SPDX-License-Identifier: Apache-2.0
"""The search space: the knobs of a model's settings, and their candidates.

A knob defines its overlay of `models.<name>` in tritonctl.yaml, so that write-back stores exactly
the measured settings. No knob needs a new engine: candidates stay within the artefact's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritonctl.engines.builds.engine import Artefact
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import Project
from tritonctl.tuning.trials import Settings, Value

# Names of the knobs that the queueing estimate and `SearchSpace.is_allowed` use.
INSTANCES, MAX_BATCH, MAX_SEQUENCES = (
    "engine.instances",
    "engine.max_batch_size",
    "engine.max_num_seqs",
)
DELAY, INLINE, FUSED = "max_queue_delay_microseconds", "inline_detokenizer", "fused"
DETOKENIZER_DELAY = "detokenizer.max_queue_delay_microseconds"
TOKENIZERS = "tokenizer.instances"
RUN_TOKENS, PARALLEL_RUNS = "max_num_tokens", "parallel_runs"
THREADS = ("session.intra_op_num_threads", "engine.INFERENCE_NUM_THREADS")
# Knobs of steps that these switches remove.
_REMOVED_KNOBS = {FUSED: (INLINE, TOKENIZERS, DETOKENIZER_DELAY), INLINE: (DETOKENIZER_DELAY,)}
# With more busy threads per core, threads only wait for each other.
_MAX_THREADS_PER_CORE = 2


@dataclass(frozen=True)
class Knob:
    """A tunable setting."""

    name: str
    values: tuple[Value, ...]  # candidates in natural order, including `base`
    base: Value  # the current value
    overlay: Callable[[Value], dict[str, Any]]  # of `models.<name>`
    model: str  # the model whose load it changes
    reason: str
    # Bottlenecks that a higher value relieves: queue (waiting), compute (time of a batch), batch
    # (small batches), memory, overload.
    relieves: frozenset[str] = frozenset()
    restart: bool = False  # changes repository files, which a loaded model does not see


@dataclass(frozen=True)
class SearchSpace:
    """The knobs of one model of a project, on a machine with `cores` cores."""

    project: Project
    model: str
    knobs: tuple[Knob, ...]
    cores: int
    artefacts: Mapping[str, Artefact]  # of the project; no knob needs another one

    @property
    def base(self) -> dict[str, Value]:
        """The current settings."""
        return {knob.name: knob.base for knob in self.knobs}

    def overlay(self, settings: Settings) -> dict[str, Any]:
        """Return the overlay of `models.<name>` for settings; {} for the current ones."""
        merged: dict[str, Any] = {}
        for knob in self.knobs:
            value = settings.get(knob.name, knob.base)
            if value != knob.base:
                merged = deep_merge(merged, knob.overlay(value))
        return merged

    def changed_settings(self, settings: Settings) -> dict[str, Value]:
        """Return the settings that differ from the current ones."""
        base = self.base
        return {name: value for name, value in settings.items() if base.get(name) != value}

    def tuned_project(self, settings: Settings) -> Project:
        """Return the project with these settings. Raises ValidationError for invalid ones."""
        return overlay_project(self.project, {"models": {self.model: self.overlay(settings)}})

    def is_allowed(self, settings: Settings) -> bool:
        """Whether the settings are consistent and do not oversubscribe the cores."""
        removed = next((_REMOVED_KNOBS[name] for name in _REMOVED_KNOBS if settings.get(name)), ())
        if any(settings.get(name) != self.base.get(name) for name in removed):
            return False  # of a removed step
        threads = next((int(settings[name]) for name in THREADS if name in settings), 1)
        busy_threads = int(settings.get(INSTANCES, 1)) * (threads or self.cores)
        today = int(self.base.get(INSTANCES, 1)) * self.cores
        return busy_threads <= max(_MAX_THREADS_PER_CORE * self.cores, today)

    def restrict_to(self, names: Sequence[str]) -> SearchSpace:
        """Return the space with only the named knobs."""
        selected = tuple(knob for knob in self.knobs if knob.name in names)
        return replace(self, knobs=selected)


def overlay_project(project: Project, over: Mapping[str, Any]) -> Project:
    """Return the project with `over` merged into its settings."""
    # Unset fields stay unset: some defaults depend on that.
    data = project.model_dump(by_alias=True, exclude_unset=True)
    return type(project).at(project.root, deep_merge(data, over))
