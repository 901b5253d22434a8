# SPDX-License-Identifier: Apache-2.0
"""How two artefacts differ: in values, not in text. Absent is null; paths do not count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tritonctl.engines.artefacts.store import Stored
from tritonctl.engines.build.given_files import field_at
from tritonctl.host.units import human_bytes

# Sections of a manifest in the order of interest, by where each lies in it.
_SECTIONS = (
    *("builder", "task", "stage", "source"),
    # As the builder resolved them: before the request, which then need not repeat them.
    *("result.limits", "request", "inputs"),
    *("result.model", "result.runtime", "result.tensors", "result.versions", "result.hardware"),
    *("result.evaluation", "result.proof"),
)
# Of the request: where things lay when it was built. A fingerprint knows no paths.
_PLACES = (
    "request.checkpoint",
    "request.source",
    "request.evaluation.prompts",
    "request.calibration.data",
)


@dataclass(frozen=True)
class Difference:
    """One field with its values; None: absent or null. `change` is right - left of numbers.

    `place` marks a path: the same files elsewhere make the same engine.
    """

    field: str
    left: Any
    right: Any
    place: bool = False

    @property
    def change(self) -> float | None:
        """How much more the right one has, for two numbers."""
        values = (self.left, self.right)
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
            return None
        return float(self.right - self.left)


def fields(stored: Stored) -> list[tuple[str, Any]]:
    """A manifest as (dotted name, value) pairs: a file with its size, a tensor with its type.

    Raises RepositoryError.
    """
    return [line for name, value in _flat("", stored.manifest()) for line in _lines(name, value)]


def _lines(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Of a list of files or of tensors each on its own."""
    if name == "result.files":
        yield from ((f"{name}.{file['path']}", human_bytes(file["size"])) for file in value)
    elif name in ("result.tensors.inputs", "result.tensors.outputs"):
        yield from ((f"{name}.{one['name']}", f"{one['data_type']} {one['dims']}") for one in value)
    else:
        yield name, value


def differences(left: Stored, right: Stored) -> list[Difference]:
    """Fields of two manifests that differ; places last. Raises RepositoryError."""
    records = (left.manifest(), right.manifest())
    differences = [*_fields(*records), *_files(*records)]
    return sorted(differences, key=lambda difference: difference.place)


def _fields(left: dict[str, Any], right: dict[str, Any]) -> Iterator[Difference]:
    shown: set[str] = set()
    for path in _SECTIONS:
        section = path.removeprefix("result.")
        values = [dict(_flat(section, field_at(record, path))) for record in (left, right)]
        for field in dict.fromkeys([*values[0], *values[1]]):
            pair = [value.get(field) for value in values]
            if pair[0] != pair[1] and field.removeprefix("request.") not in shown:
                shown.add(field)
                yield Difference(field, pair[0], pair[1], place=field in _PLACES)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`value` as (dotted name, scalar or list) pairs."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else key, inner)
    else:
        yield name, value


def _files(left: dict[str, Any], right: dict[str, Any]) -> Iterator[Difference]:
    """Files by size; by hash where sizes are equal and contents are not."""
    first, second = ({f["path"]: f for f in r["result"]["files"]} for r in (left, right))
    for path in dict.fromkeys([*first, *second]):
        one, other = first.get(path, {}), second.get(path, {})
        for key in ("size", "sha256"):
            if one.get(key) != other.get(key):
                yield Difference(f"files.{path}.{key}", one.get(key), other.get(key))
                break


def explanation(left: Stored, right: Stored, differences: list[Difference]) -> str | None:
    """What differs although no field says so, judged from the fingerprints."""
    asked = ("builder", "task", "stage", "source", "limits.", "request.", "inputs.")
    if any(d.field.startswith(asked) and not d.place for d in differences):
        return None
    manifests = (left.manifest(), right.manifest())
    if manifests[0]["fingerprint"] == manifests[1]["fingerprint"]:
        return "the same fingerprint: one engine, built twice" if differences else None
    if all(manifest.get("inputs") for manifest in manifests):
        return "asked for the same of the same files: the machines' architectures differ"
    return (
        "asked for the same: the checkpoint, the prompts or the builder's own files differ (a "
        "manifest of that version holds only their common fingerprint)"
    )
