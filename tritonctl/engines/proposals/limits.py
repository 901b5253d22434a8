# SPDX-License-Identifier: Apache-2.0
"""Batch and length that a device has the memory for, by the figures of `tritonctl plan`."""

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

# What an engine may take of the host's memory: the rest is for Triton, tokenizers, the system.
HOST_SHARE = 0.8
_SHORTEST = 512


@dataclass(frozen=True)
class Room:
    """The device that limits are sought for: a GPU of the table, or this machine where None."""

    gpu: str | None
    root: Path

    def plan(self, model: Mapping[str, Any]) -> ModelPlan:
        """The plan of a model there. Raises ConfigurationError."""
        data = {"schema": SCHEMA, "models": {"model": dict(model)}}
        project = Project.at(self.root, data)
        if self.gpu is not None:
            return plan_model(project, "model", (self.gpu,))
        memory = host_memory()
        return plan_model(project, "model", (), int(memory * HOST_SHARE) if memory else None)


def fitted(
    room: Room, model: Mapping[str, Any], batch: int, length: int | None
) -> tuple[dict[str, int], ModelPlan]:
    """Limits of at most `batch` and `length` that fit, or the smallest that were tried.

    A shorter sequence is preferred to a batch of less than one. Raises ConfigurationError.
    """
    lengths = [length] if length is None else [*_halves(length)]
    for tokens in lengths:
        limits = _limits(batch, tokens)
        plan = room.plan(deep_merge(model, {"engine": limits}))
        if plan.fits[0].largest_batch < 1 and tokens != lengths[-1]:
            continue
        while limits["max_batch_size"] > 1 and not plan.fits[0].fits:
            limits = _limits(_smaller(plan.fits[0], limits["max_batch_size"]), tokens)
            plan = room.plan(deep_merge(model, {"engine": limits}))
        return limits, plan
    raise AssertionError("unreachable: the last length returns")


def _limits(batch: int, length: int | None) -> dict[str, int]:
    limits = {"max_batch_size": batch}
    return limits if length is None else limits | {"max_seq_len": length}


def _smaller(fit: Fit, batch: int) -> int:
    """The largest power of two below `batch` that fits."""
    most = max(1, min(fit.largest_batch, batch - 1))
    return 1 << (most.bit_length() - 1)


def _halves(length: int) -> list[int]:
    lengths = [length]
    while lengths[-1] // 2 >= _SHORTEST:
        lengths.append(lengths[-1] // 2)
    return lengths
