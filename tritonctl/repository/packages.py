# SPDX-License-Identifier: Apache-2.0
"""What a project's Python models import: the requirements of many, in one environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tritonctl.errors import ConfigurationError
from tritonctl.host.environments import names_file, requirement_lines
from tritonctl.repository.backends import line_of
from tritonctl.repository.server_environment import Program, requirement_files

_OPTIONS = re.compile(r"\s--\w.*")  # of one requirement, such as --hash


@dataclass(frozen=True)
class _Wanted:
    """A line of a requirements file; `package` is None for an option, a path or a bare URL."""

    file: Path
    line: str
    package: Requirement | None

    @property
    def place(self) -> str:
        """`file:line`."""
        return line_of(self.file, self.line)

    @property
    def pin(self) -> str | None:
        """The one version that it takes."""
        specifiers = self.package.specifier if self.package else ()
        pins = [
            one.version for one in specifiers if one.operator == "==" and "*" not in one.version
        ]
        return pins[0] if pins else None

    def excludes(self, other: _Wanted) -> bool:
        """Whether no version of the package that `other` pins would do."""
        if not self.package or not other.package or other.pin is None:
            return False
        same = canonicalize_name(self.package.name) == canonicalize_name(other.package.name)
        return same and not self.package.specifier.contains(other.pin, prereleases=True)


def refuse_conflicts(programs: Sequence[Program]) -> None:
    """Raise ConfigurationError for requirements that no environment can meet."""
    wanted = [each for each in _wanted(programs) if each.package and _applies(each.package)]
    for one in wanted:
        for other in wanted:
            if one.excludes(other):
                raise ConfigurationError(
                    f"{one.place} wants {one.line}, {other.place} {other.line}: all models of a "
                    "server share one environment",
                    remedy="ask for the same version in both",
                )


def image_requirements(programs: Sequence[Program], *, built: bool) -> str:
    """The requirements of an image, each once.

    built: whether the image is made of them. Raises ConfigurationError for what pip would look up
    on this machine, or where an option says: in the image there is neither.
    """
    refuse_conflicts(programs)
    lines = set()
    for each in _wanted(programs):
        if each.package:
            lines.add(each.line)
        elif built:
            raise ConfigurationError(
                f"{each.file}: `{each.line}` cannot be installed in an image: only packages can",
                remedy="name a package, or set `docker.image` to an image that has it",
            )
    return "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


def files_asking_for(requirement: str, programs: Sequence[Program]) -> list[Path]:
    """The files that name the package of this requirement, whatever version they ask for."""
    try:
        name = canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return []
    asking = (
        each.file
        for each in _wanted(programs)
        if each.package and canonicalize_name(each.package.name) == name
    )
    return list(dict.fromkeys(asking))


def _wanted(programs: Sequence[Program]) -> Iterator[_Wanted]:
    for file in requirement_files(programs):
        for place, line in requirement_lines(file):
            yield _Wanted(place, line, _package(place, line))


def _package(file: Path, line: str) -> Requirement | None:
    if line.startswith("-") or names_file(file.parent, line):
        return None
    try:
        return Requirement(_OPTIONS.sub("", line))
    except InvalidRequirement as error:
        if "/" in line:
            return None
        raise ConfigurationError(
            f"{file}: `{line}` is no requirement: {str(error).splitlines()[0]}",
            remedy="write one such as numpy==1.26.4",
        ) from error


def _applies(package: Requirement) -> bool:
    return package.marker is None or package.marker.evaluate()
