# SPDX-License-Identifier: Apache-2.0
"""Requirements of a project's Python models, which share one environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.environments import names_file
from tritonctl.host.requirements import (
    lock_text,
    locked_lines,
    locks_of,
    refuse_outdated_lock,
    requirement_lines,
    without_options,
)
from tritonctl.repository.backends import line_of
from tritonctl.repository.server_environment import StubProgram, requirement_files


@dataclass(frozen=True)
class _RequirementLine:
    """A line of a requirements file."""

    file: Path
    line: str
    package: Requirement | None  # None for an option, a path or a bare URL

    @property
    def location(self) -> str:
        """`file:line`."""
        return line_of(self.file, self.line)

    @property
    def pin(self) -> str | None:
        """The single version that the line permits, or None."""
        specifiers = self.package.specifier if self.package else ()
        pins = [
            specifier.version
            for specifier in specifiers
            if specifier.operator == "==" and "*" not in specifier.version
        ]
        return pins[0] if pins else None

    def excludes(self, pinned: _RequirementLine) -> bool:
        """Whether the line rules out the version that another line pins."""
        if not self.package or not pinned.package or pinned.pin is None:
            return False
        same = canonicalize_name(self.package.name) == canonicalize_name(pinned.package.name)
        return same and not self.package.specifier.contains(pinned.pin, prereleases=True)


def refuse_conflicts(programs: Sequence[StubProgram]) -> None:
    """Raise ConfigurationError for requirements that no environment can meet."""
    lines = [
        each for each in _requirement_lines(programs) if each.package and _applies(each.package)
    ]
    for line in lines:
        for pinned in lines:
            if line.excludes(pinned):
                raise ConfigurationError(
                    f"{line.location} requires {line.line}, {pinned.location} {pinned.line}: all "
                    "models of "
                    "a server share one environment",
                    remedy="require the same version in both",
                )


def image_requirements(programs: Sequence[StubProgram], *, built: bool) -> str:
    """Return the requirements of an image as text, each once.

    `built`: whether the image is built from them. Then options, paths and URLs, which need this
    machine, raise ConfigurationError.
    """
    refuse_conflicts(programs)
    lines = set()
    for each in _requirement_lines(programs):
        if each.package:
            lines.add(each.line)
        elif built:
            raise ConfigurationError(
                f"{each.file}: `{each.line}` cannot be installed in an image: only packages can",
                remedy="name a package, or set `docker.image` to an image that has it",
            )
    return "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


def image_locks(programs: Sequence[StubProgram]) -> dict[str, str]:
    """Return the locks of both images, as file name to text.

    The GPU image has most packages that Python backends need, in the versions that its other
    packages need: its lock has those that they name. Raises ConfigurationError for a lock that is
    out of date.
    """
    locks = locks_of(requirement_files(programs))
    for lock in locks:
        refuse_outdated_lock(lock)
    lines = {line for lock in locks for line in locked_lines(lock)}
    packages = [each.package for each in _requirement_lines(programs) if each.package]
    names = {canonicalize_name(package.name) for package in packages}
    server = locked_lines(bundled.find("docker/tritonserver_requirements.lock"))
    return {
        "cpu_requirements.lock": lock_text({*server, *lines}),
        "gpu_requirements.lock": lock_text(
            line for line in lines if canonicalize_name(line.partition("==")[0]) in names
        ),
    }


def files_asking_for(requirement: str, programs: Sequence[StubProgram]) -> list[Path]:
    """Return the files that require this requirement's package, in any version."""
    try:
        name = canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return []
    asking = (
        each.file
        for each in _requirement_lines(programs)
        if each.package and canonicalize_name(each.package.name) == name
    )
    return list(dict.fromkeys(asking))


def _requirement_lines(programs: Sequence[StubProgram]) -> Iterator[_RequirementLine]:
    for file in requirement_files(programs):
        for place, line in requirement_lines(file):
            yield _RequirementLine(place, line, _package(place, line))


def _package(file: Path, line: str) -> Requirement | None:
    if line.startswith("-") or names_file(file.parent, line):
        return None
    try:
        return Requirement(without_options(line))
    except InvalidRequirement as error:
        if "/" in line:
            return None
        raise ConfigurationError(
            f"{file}: `{line}` is not a requirement: {str(error).splitlines()[0]}",
            remedy="write for example numpy==1.26.4",
        ) from error


def _applies(package: Requirement) -> bool:
    return package.marker is None or package.marker.evaluate()
