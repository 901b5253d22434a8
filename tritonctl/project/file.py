# SPDX-License-Identifier: Apache-2.0
"""Reads `tritonctl.yaml`: flag > environment > profile > file > default, errors with file:line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.project.expected import error_location, explain_error, sort_errors
from tritonctl.project.schema import SCHEMA, Project
from tritonctl.project.yaml import Location, YamlSource, read_yaml

FILE_NAME = "tritonctl.yaml"
# TRITONCTL_SERVER__GRPC_PORT=0 sets server.grpc_port. Only these sections: other variables
# (TRITONCTL_CACHE_DIR) must not be mistaken for fields.
_ENVIRONMENT_SECTIONS = ("SERVER__", "FRONTEND__", "MODELS__", "MODEL_REPOSITORY")


def find_project_file(start: Path) -> Path:
    """Find the project file in `start` or its nearest parent. Raises ConfigurationError."""
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise ConfigurationError(
        f"no {FILE_NAME} in {start.resolve()} or any folder above it",
        remedy="write one with `tritonctl init`, or name one with --project",
    )


def load_project(
    path: Path | None = None,
    *,
    profile: str | None = None,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Project:
    """Read, merge and validate a project file.

    `path` is a file or its folder (default: TRITONCTL_PROJECT, else the nearest one upwards from
    the working directory), `overrides` are `key.path=value` strings with YAML values. Every
    profile is validated, `profile` is applied. Raises ConfigurationError for mistakes in the file,
    UsageError for mistakes in the arguments and the environment.
    """
    environment = os.environ if environment is None else environment
    file = _project_file(path, environment)
    source = read_yaml(file)
    chosen = profile or environment.get("TRITONCTL_PROFILE")
    for name in _profiles(source):
        with_profile = _Merged.of(source)
        with_profile.add_profile(source, name)
        _validate(with_profile, file)
    merged = _Merged.of(source)
    if chosen:
        _refuse_unknown_profile(source, chosen)
        merged.add_profile(source, chosen)
    for origin, assignment in _assignments(environment, overrides):
        merged.assign(origin, assignment)
    project = _validate(merged, file)
    project._typed = frozenset(merged.command_line_locations())
    return project


def load_profiles(
    path: Path | None = None, *, environment: Mapping[str, str] | None = None
) -> dict[str | None, Project]:
    """Return the project without a profile (None) and under each of its profiles.

    Raises ConfigurationError, UsageError.
    """
    environment = os.environ if environment is None else environment
    without_profile = {k: v for k, v in environment.items() if k != "TRITONCTL_PROFILE"}
    projects: dict[str | None, Project] = {None: load_project(path, environment=without_profile)}
    for name in projects[None].profiles:
        projects[name] = load_project(path, profile=name, environment=without_profile)
    return projects


def _project_file(path: Path | None, environment: Mapping[str, str]) -> Path:
    if path is None and environment.get("TRITONCTL_PROJECT"):
        path = Path(environment["TRITONCTL_PROJECT"])
    if path is None:
        return find_project_file(Path.cwd())
    file = path / FILE_NAME if path.is_dir() else path
    if not file.exists():
        raise UsageError(
            f"{file} does not exist",
            remedy="name a project's folder, or write one there with `tritonctl init`",
        )
    return file


def _profiles(source: YamlSource) -> dict[str, dict[str, Any]]:
    profiles = source.data.get("profiles") or {}
    if not isinstance(profiles, dict):
        raise ConfigurationError(
            f"{source.line_of(('profiles',))}: `profiles` is not a mapping of names to settings",
            remedy="write for example `profiles: {gpu: {server: {mode: docker}}}`",
        )
    for name, settings in profiles.items():
        if not isinstance(settings, dict):
            raise ConfigurationError(
                f"{source.line_of(('profiles', name))}: profile `{name}` is not a mapping",
                remedy="write the changed settings below it, or remove it",
            )
    return profiles


def _refuse_unknown_profile(source: YamlSource, name: str) -> None:
    profiles = _profiles(source)
    if name not in profiles:
        raise UsageError(
            f"{source.line_of(('profiles',))}: unknown profile `{name}`",
            remedy=choices(name, sorted(profiles), "profiles:"),
        )


@dataclass
class _Merged:
    """Merged data and the origin of each value."""

    data: dict[str, Any]
    origins: dict[Location, str] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)  # origins outside the file

    @classmethod
    def of(cls, source: YamlSource) -> _Merged:
        origins = {location: source.line_of(location) for location in source.lines}
        return cls(dict(source.data), origins)

    def add_profile(self, source: YamlSource, name: str) -> None:
        self.merge(
            _profiles(source)[name], lambda inner: source.line_of(("profiles", name, *inner))
        )

    def assign(self, origin: str, assignment: str) -> None:
        key, separator, text = assignment.partition("=")
        self.assigned.add(origin)
        if not separator or not key:
            raise UsageError(
                f"{origin}: `{assignment}` is not KEY=VALUE",
                remedy="write for example --set server.grpc_port=0",
            )
        value: Any = _yaml_value(text, origin)
        for part in reversed(key.split(".")):
            value = {part: value}
        self.merge(value, lambda _: origin)

    def merge(self, over: Mapping[str, Any], origin: Callable[[Location], str]) -> None:
        """Merge `over` into the data; `origin` returns the origin of each location in it."""
        self._record_origins((), over, origin)
        self.data = deep_merge(self.data, over)

    def _record_origins(
        self, location: Location, value: Any, origin: Callable[[Location], str]
    ) -> None:
        """Record origins: a replaced value gets the new one, a merged mapping keeps its first."""
        inner: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, Mapping):
            self.origins.setdefault(location, origin(location))
            inner = value.items()
        else:
            depth = len(location)
            remaining = {k: v for k, v in self.origins.items() if k[:depth] != location}
            self.origins = remaining | {location: origin(location)}
            inner = enumerate(value) if isinstance(value, list) else ()
        for part, item in inner:
            self._record_origins((*location, part), item, origin)

    def origin_of(self, location: Location) -> str:
        """Return the origin of a location, or of the nearest enclosing one."""
        while location not in self.origins:
            location = location[:-1]
        return self.origins[location]

    def command_line_locations(self) -> Iterator[Location]:
        """Yield the locations that the command line or the environment set."""
        return (place for place, origin in self.origins.items() if origin in self.assigned)


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; replace all other values by those of `over`."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        are_mappings = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = deep_merge(old, value) if are_mappings and old is not None else value
    return result


def _assignments(
    environment: Mapping[str, str], overrides: Iterable[str]
) -> Iterable[tuple[str, str]]:
    for name in sorted(environment):
        key = name.removeprefix("TRITONCTL_")
        if key != name and key.startswith(_ENVIRONMENT_SECTIONS):
            path = key.lower().replace("__", ".")
            yield f"environment variable {name}", f"{path}={environment[name]}"
    for override in overrides:
        yield f"--set {override}", override


def _yaml_value(text: str, origin: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-99-99
        raise UsageError(
            f"{origin}: the value is not valid YAML", remedy="quote it for your shell"
        ) from error


def _validate(merged: _Merged, file: Path) -> Project:
    try:
        return Project.at(file.resolve().parent, merged.data)
    except ValidationError as error:
        problems = [_explain(merged, item) for item in sort_errors(error)]
    all_typed = all(origin in merged.assigned for origin, _, _ in problems)
    kind = UsageError if all_typed else ConfigurationError
    text = "\n".join(f"{origin}: {problem}" for origin, problem, _ in problems)
    raise kind(text, remedy=problems[0][2])


def _explain(merged: _Merged, item: dict[str, Any]) -> tuple[str, str, str]:
    """Return origin, problem and remedy of a validation error."""
    location = error_location(item, merged.data)
    origin = merged.origin_of(location)
    if item["type"] == "missing" and location == ("schema",):
        return origin, "`schema` is missing", f"write `schema: {SCHEMA}` in its first line"
    if item["type"] != "extra_forbidden" and location == ("schema",):
        return origin, f"this tritonctl reads schema {SCHEMA}", f"write `schema: {SCHEMA}`"
    problem, remedy = explain_error(item, location, Project)
    return origin, problem, remedy or "see the field's type with `tritonctl schema`"
