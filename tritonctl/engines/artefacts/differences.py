# SPDX-License-Identifier: Apache-2.0
"""Differences between two artefacts, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.engines.artefacts.store import StoredArtefact
from tritonctl.engines.builds.option_files import field_at
from tritonctl.host.units import human_bytes
from tritonctl.store.differences import FieldDifference, compare_fields, compare_files, flatten

# Sections of a manifest as dotted paths, the most interesting first.
_SECTIONS = (
    *("builder", "task", "stage", "source"),
    # Limits as the builder resolved them; the request then does not repeat them.
    *("result.limits", "request", "inputs"),
    *("result.model", "result.runtime", "result.tensors", "result.versions", "result.hardware"),
    *("result.evaluation", "result.proof"),
)
# Paths in the request. They do not enter the fingerprint.
_PATH_FIELDS = (
    "request.checkpoint",
    "request.source",
    "request.evaluation.prompts",
    "request.calibration.data",
)


@dataclass(frozen=True)
class ArtefactDifference(FieldDifference):
    """One field whose values differ between two manifests."""

    is_path: bool = False  # a path: the same files elsewhere make the same engine

    @property
    def remark(self) -> str:
        """The last column of a table."""
        return "a path only" if self.is_path else super().remark


def manifest_fields(stored: StoredArtefact) -> list[tuple[str, Any]]:
    """Return a manifest as (dotted name, value) pairs: files with sizes, tensors with types.

    Raises RepositoryError.
    """
    return [
        line
        for name, value in flatten("", stored.manifest().model_dump(mode="json"))
        for line in _split_list(name, value)
    ]


def _split_list(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Split a list of files or tensors into one line per entry."""
    if name == "result.files":
        yield from ((f"{name}.{file['path']}", human_bytes(file["size"])) for file in value)
    elif name in ("result.tensors.inputs", "result.tensors.outputs"):
        yield from (
            (f"{name}.{tensor['name']}", f"{tensor['data_type']} {tensor['dims']}")
            for tensor in value
        )
    else:
        yield name, value


def compare_artefacts(first: StoredArtefact, second: StoredArtefact) -> list[ArtefactDifference]:
    """Return the fields that differ between two manifests, paths last. Raises RepositoryError."""
    records = [stored.manifest().model_dump(mode="json") for stored in (first, second)]
    files = [{f"files.{file.path}": file for file in stored.files} for stored in (first, second)]
    differences = [
        *_section_differences(*records),
        *(ArtefactDifference(*change) for change in compare_files(*files)),
    ]
    return sorted(differences, key=lambda difference: difference.is_path)


def _section_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[ArtefactDifference]:
    reported_fields: set[str] = set()
    for path in _SECTIONS:
        section = path.removeprefix("result.")
        for change in compare_fields(section, field_at(first, path), field_at(second, path)):
            field = change[0]
            if field.removeprefix("request.") not in reported_fields:
                reported_fields.add(field)
                yield ArtefactDifference(*change, is_path=field in _PATH_FIELDS)


def explain_hidden_difference(
    first: StoredArtefact, second: StoredArtefact, differences: Sequence[ArtefactDifference]
) -> str | None:
    """Explain from the fingerprints why two artefacts differ although no setting does."""
    requested_sections = ("builder", "task", "stage", "source", "limits.", "request.", "inputs.")
    if any(d.field.startswith(requested_sections) and not d.is_path for d in differences):
        return None
    manifests = (first.manifest(), second.manifest())
    if manifests[0].fingerprint == manifests[1].fingerprint:
        return "the fingerprints are equal: one engine, built twice" if differences else None
    if all(manifest.inputs for manifest in manifests):
        return "requests and input files are equal: the machines' architectures differ"
    return (
        "the requests are equal: the checkpoint, the prompts or the builder's files differ (a "
        "manifest of that version holds only their common fingerprint)"
    )
