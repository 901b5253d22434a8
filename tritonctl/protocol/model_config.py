# SPDX-License-Identifier: Apache-2.0
"""A model's configuration as plain data: the JSON form of Triton's ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def steps_of(config: Config) -> list[str]:
    """Return the models of an ensemble's steps, each once; [] for other models."""
    steps = (config.get("ensemble_scheduling") or {}).get("step", ())
    return list(dict.fromkeys(step["model_name"] for step in steps))


def all_steps(name: str, configs: Mapping[str, Config]) -> list[str]:
    """Return an ensemble's models, including nested ones; [] for other models."""
    steps: dict[str, None] = {}
    waiting = [name]
    while waiting:
        new = [n for n in steps_of(configs.get(waiting.pop(), {})) if n not in steps]
        steps |= dict.fromkeys(new)
        waiting += new
    return list(steps)


def instances_of(config: Config) -> int:
    """Return the number of instances in the configured groups; 0: Triton decides."""
    groups = config.get("instance_group") or ()
    return sum(int(g.get("count") or 1) * max(1, len(g.get("gpus", ()))) for g in groups)


def is_decoupled(config: Config) -> bool:
    """Whether a request may have any number of responses."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled"))


def is_cached(config: Config) -> bool:
    """Whether Triton's response cache may answer for the model."""
    return bool(config.get("response_cache", {}).get("enable"))
