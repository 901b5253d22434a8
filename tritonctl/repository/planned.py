# SPDX-License-Identifier: Apache-2.0
"""A model as it is planned: a folder of the repository that nobody has written yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tritonctl.protocol.model_config import is_cached
from tritonctl.repository.pbtxt import parse_pbtxt

# Of models without a response cache: clients may name it.
FIRST_VERSION = "1"


@dataclass(frozen=True)
class Served:
    """The release that a plan is of. `requirements`: files of what its Python models import.

    `link`: what a server knows it by, so that another one can take its place; None: its own folder.
    """

    name: str
    requirements: tuple[Path, ...]
    link: Path | None


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
