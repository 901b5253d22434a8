# SPDX-License-Identifier: Apache-2.0
"""Batch size and length that fit a device's memory, by the figures of `tritonctl plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.engines.planning.plans import plan_model
from tritonctl.engines.planning.records import Fit, ModelPlan
from tritonctl.host.resources import host_memory
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import SCHEMA, Project

# An engine's share of host memory; Triton, tokenizers and the system use the remainder.
HOST_SHARE = 0.8
_MIN_LENGTH = 512


@dataclass(frozen=True)
class LimitTarget:
    """The device that limits must fit."""

    gpu: str | None  # a name of the compatibility table; None: this machine
    root: Path  # of the project

    def plan(self, model: Mapping[str, Any]) -> ModelPlan:
        """Plan a model on the device. Raises ConfigurationError."""
        data = {"schema": SCHEMA, "models": {"model": dict(model)}}
        project = Project.at(self.root, data)
        if self.gpu is not None:
            return plan_model(project, "model", (self.gpu,))
        memory = host_memory()
        return plan_model(project, "model", (), int(memory * HOST_SHARE) if memory else None)


def fit_limits(
    target: LimitTarget, model: Mapping[str, Any], batch: int, length: int | None
) -> tuple[dict[str, int], ModelPlan]:
    """Return fitting limits of at most `batch` and `length`, or the smallest ones tried.

    The length shrinks before the batch falls below one. Raises ConfigurationError.
    """
    lengths = [length] if length is None else [*_halved_lengths(length)]
    for tokens in lengths:
        limits = _limits(batch, tokens)
        plan = target.plan(deep_merge(model, {"engine": limits}))
        if plan.fits[0].largest_batch < 1 and tokens != lengths[-1]:
            continue
        while limits["max_batch_size"] > 1 and not plan.fits[0].fits:
            limits = _limits(_smaller_batch(plan.fits[0], limits["max_batch_size"]), tokens)
            plan = target.plan(deep_merge(model, {"engine": limits}))
        return limits, plan
    raise AssertionError("unreachable: the last length returns")


def _limits(batch: int, length: int | None) -> dict[str, int]:
    limits = {"max_batch_size": batch}
    return limits if length is None else limits | {"max_seq_len": length}


def _smaller_batch(fit: Fit, batch: int) -> int:
    """Return the largest fitting power of two below `batch`."""
    max_batch = max(1, min(fit.largest_batch, batch - 1))
    return 1 << (max_batch.bit_length() - 1)


def _halved_lengths(length: int) -> list[int]:
    lengths = [length]
    while lengths[-1] // 2 >= _MIN_LENGTH:
        lengths.append(lengths[-1] // 2)
    return lengths
