# SPDX-License-Identifier: Apache-2.0
"""The figures behind estimates, from `builders/estimates.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field

from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.project.base import Frozen
from tritonctl.project.engine import Engine
from tritonctl.project.expected import reason


class Storage(Frozen):
    """Storage of weights and KV in one precision: bits, and bytes of scales. See estimates.toml."""

    linear: float
    embedding: float
    head: float
    other: float
    activation: float
    kv: float = 0
    group: int | None = None
    group_bytes: float = 0
    row_bytes: float = 0
    column_bytes: float = 0
    tensor_bytes: float = 0
    embedding_row_bytes: float = 0
    head_row_bytes: float = 0
    kv_head_bytes: float = 0
    graph: tuple[int, int] = (0, 0)
    # Overrides of the builder's host_copies and disk_copies.
    copies: float | None = None
    disk_copies: float | None = None


class BetterBuilder(Frozen):
    """A better builder for tasks in a precision on a CPU, and the reason in figures."""

    builder: str
    why: str


class FasterPrecision(BetterBuilder):
    """A faster precision on a CPU that has one of these flags."""

    precision: str
    flags: tuple[str, ...]


class BuilderFigures(Frozen):
    """Figures of a builder's engines. See estimates.toml."""

    device: Literal["host", "gpu", "any"]  # any: as the model's instance_group
    engine: Literal["decoder", "graph"] = "decoder"  # graph: without a KV cache
    block_size: int = 1
    max_num_tokens: int | None = None  # overrides builder.toml
    keeps_tokenizer: bool = True
    workspace_bytes: int = 0
    disk_copies: float = 1.0
    scratch_bytes_per_parameter: float = 0.0
    build_bytes_per_parameter: float | None = None
    build_bytes: int = 0
    host_copies: float = 1.0
    host_bytes: int = 0
    activation_copies: float = 1.0
    memory_fraction: float = 1.0
    device_share: float = 1.0
    precisions: dict[str, Storage]
    # Overrides of `precisions` with `options.calibration: static`.
    calibrated: dict[str, Storage] = Field({})
    better: dict[str, BetterBuilder] = Field({})  # by precision
    faster: dict[str, FasterPrecision] = Field({})  # by precision
    # Replaces all figures above for tasks whose engine is a graph.
    tasks: BuilderFigures | None = None

    def better_for(self, engine: Engine) -> BetterBuilder | None:
        """Return a better builder for a task's engine on a CPU; None for a calibrated engine."""
        if engine.options.get("calibration") == "static":
            return None
        return self.better.get(engine.precision)


class EstimateTable(Frozen):
    """The file `estimates.toml`."""

    schema_: Literal["tritonctl.estimates/1"] = Field(alias="schema")
    builders: dict[str, BuilderFigures]
    kv_cache_dtypes: dict[str, float]


def estimate_table(project_root: Path | None = None) -> EstimateTable:
    """Read the table. Raises ConfigurationError when it is malformed."""
    file = bundled.find("builders/estimates.toml", project_root)
    remedy = "compare it with tritonctl's own"
    try:
        return EstimateTable.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(f"{file} is malformed: {reason(error)}", remedy=remedy) from error
