# SPDX-License-Identifier: Apache-2.0
"""A planned model: a folder of the repository before it is written."""

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

# Version of models without a response cache; clients may name it.
FIRST_VERSION = "1"


@dataclass(frozen=True)
class ServedRelease:
    """The release that a plan describes."""

    name: str
    requirements: tuple[Path, ...]  # requirements files of its Python models
    # The link under which a server loads the models, so that another release can replace them;
    # None: the release's folder.
    repository: Path | None


@dataclass(frozen=True)
class PlannedModel:
    """One folder of the repository: its config.pbtxt and the files of its version folder."""

    name: str
    owner: str  # the project's model that this is, or is a step of
    config: str
    files: tuple[tuple[Path, str], ...]  # (source, path below the version folder)
    version: str = FIRST_VERSION  # name of the version folder

    @property
    def is_cached(self) -> bool:
        """Whether Triton's response cache is enabled."""
        return is_cached(parse_pbtxt(self.config))


def config_text(config: ModelConfig, raw: Mapping[str, Any] | None, header: str) -> str:
    """Return a config.pbtxt; `raw` fields of `serving.config` win. Raises ConfigurationError."""
    if raw and "name" in raw:
        raise ConfigurationError(
            f"serving.config cannot rename `{config.name}`: the name must equal the folder's",
            remedy="remove `name`; rename it under `models:` or `ensembles:` instead",
        )
    return to_pbtxt(deep_merge(config.as_dict(), raw or {}), header=header)


def header_text(subject: str, basis: str, settings: BaseModel, engine: str = "") -> str:
    """Return the comment of a config.pbtxt: its model, and a digest of settings and engine."""
    record = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    digest = hashlib.sha256(f"{record}{engine}".encode()).hexdigest()
    return (
        f"{HEADER} {__version__} for {subject} ({basis} {digest[:16]}).\n"
        "Change tritonctl.yaml and render again; edits here are lost."
    )


def batching_fields(serving: Serving | ComposedServing, delay_microseconds: int) -> dict[str, Any]:
    """Return the project's `dynamic_batching`; `delay_microseconds` is the default delay."""
    chosen = serving.dynamic_batching.model_dump(exclude_defaults=True)
    batching = {"max_queue_delay_microseconds": delay_microseconds} | chosen
    return {key: value for key, value in batching.items() if value}
