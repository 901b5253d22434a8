# SPDX-License-Identifier: Apache-2.0
"""A model as it is planned: a folder of the repository that nobody has written yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tritonctl.errors import ConfigurationError
from tritonctl.host.version import __version__
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import ComposedServing, Serving
from tritonctl.protocol.model_config import is_cached
from tritonctl.repository.contents import HEADER
from tritonctl.repository.model_config import ModelConfig
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt

# Of models without a response cache: clients may name it.
FIRST_VERSION = "1"


@dataclass(frozen=True)
class Served:
    """The release that a plan is of. `requirements`: files of what its Python models import.

    `repository`: what a server knows its models by, through a link, so that those of another one
    can take their place; None: by their own folder.
    """

    name: str
    requirements: tuple[Path, ...]
    repository: Path | None


@dataclass(frozen=True)
class PlannedModel:
    """One folder of the repository: its config.pbtxt and the files of its version folder.

    `owner`: the project's model that it is, or is a step of. `version`: the version folder.
    """

    name: str
    owner: str
    config: str
    files: tuple[tuple[Path, str], ...]  # (source, path below the version folder)
    version: str = FIRST_VERSION

    @property
    def cached(self) -> bool:
        """Whether Triton's response cache may answer for it."""
        return is_cached(parse_pbtxt(self.config))


def config_text(config: ModelConfig, raw: Mapping[str, Any] | None, header: str) -> str:
    """A config.pbtxt; `raw`: fields of `serving.config`, which win. Raises ConfigurationError."""
    if raw and "name" in raw:
        raise ConfigurationError(
            f"serving.config cannot rename `{config.name}`: Triton wants the folder's name there",
            remedy="remove `name`; rename it under `models:` or `ensembles:` instead",
        )
    return to_pbtxt(deep_merge(config.as_dict(), raw or {}), header=header)


def header_text(subject: str, basis: str, settings: BaseModel, engine: str = "") -> str:
    """The comment above a config.pbtxt: whose it is, with a digest of its settings and engine."""
    told = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    digest = hashlib.sha256(f"{told}{engine}".encode()).hexdigest()
    return (
        f"{HEADER} {__version__} for {subject} ({basis} {digest[:16]}).\n"
        "Change tritonctl.yaml and render again; edits here are lost."
    )


def batching_of(serving: Serving | ComposedServing, delay_microseconds: int) -> dict[str, Any]:
    """`dynamic_batching` as the project has it; delay_microseconds: unless it says another."""
    chosen = serving.dynamic_batching.model_dump(exclude_defaults=True)
    batching = {"max_queue_delay_microseconds": delay_microseconds} | chosen
    return {key: value for key, value in batching.items() if value}
