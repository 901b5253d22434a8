# SPDX-License-Identifier: Apache-2.0
"""Write lines to standard output, or to a resumable file that appears only when complete.

Until the last line, `OUT.part` holds the lines and `OUT.journal` the number of valid ones. Lines
are synced to disk before the journal: neither a killed process nor a power cut loses or duplicates
a line. At the end the part is renamed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tritonctl.bulk.probe import is_same_model
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.host.files import as_host_error, read_record, try_exclusive, write_atomically

SCHEMA = "tritonctl.bulk/1"
_CHECKPOINT_SECONDS = 2.0


@dataclass(frozen=True)
class Checkpoint:
    """The progress of a run, written to the journal."""

    lines: int = 0
    input_bytes: int = 0  # up to the next line
    output_bytes: int = 0  # of the part
    input_hash: str = ""  # SHA-256 of the read lines; "" for a file, which is hashed as a whole
    failed: int = 0  # lines with an error
    truncated: int = 0  # lines whose input was truncated
    tokens: int = 0  # of all lines


class Output(Protocol):
    """Writes lines in order."""

    checkpoint: Checkpoint

    def write(self, content: bytes, checkpoint: Checkpoint) -> None:
        """Write lines and record the checkpoint; the output itself sets `output_bytes`."""

    def save(self) -> None:
        """Persist the written lines."""

    def finish(self) -> None:
        """Finish the output after the last line."""


@dataclass
class StreamOutput:
    """Writes to standard output."""

    show: Callable[[str], None]  # writes a text without buffering
    checkpoint: Checkpoint = Checkpoint()

    def write(self, content: bytes, checkpoint: Checkpoint) -> None:
        """Write lines."""
        self.show(content.decode())
        self.checkpoint = checkpoint

    def save(self) -> None:
        """Do nothing: standard output cannot be persisted."""

    def finish(self) -> None:
        """Do nothing: all lines are written."""


@dataclass
class CheckpointedFile:
    """A file that another run of the same command can resume."""

    path: Path
    settings: dict[str, Any]  # must be equal to resume
    probe: Mapping[str, float]  # must be similar to resume: `tritonctl.bulk.probe`
    checkpoint: Checkpoint = Checkpoint()
    _part: Any = None
    _saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def open_file(
        cls, path: Path, settings: dict[str, Any], probe: Mapping[str, float], *, force: bool
    ) -> Iterator[CheckpointedFile]:
        """Create the file or resume it; force: discard existing files and start over.

        Raises UsageError if the file exists or another process writes it, ConfigurationError if it
        was started with other settings, HostError.
        """
        output = cls(path, settings, probe)
        with try_exclusive(output._sibling("lock")) as free:
            if not free:
                raise UsageError(
                    f"another tritonctl is writing {path}",
                    remedy="wait for it, or name another file",
                )
            output._open_part(force=force)
            try:
                yield output
            finally:
                output._part.close()
                with suppress(OSError):  # on systems that cannot remove open files
                    output._sibling("lock").unlink()

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _open_part(self, *, force: bool) -> None:
        part, journal = self._sibling("part"), self._sibling("journal")
        if self.path.exists() and not force:
            raise UsageError(
                f"{self.path} already exists", remedy="name another file, or replace it: --force"
            )
        record = {} if force else read_record(journal)
        with as_host_error(part):
            if record and part.exists():
                self._continue(record, part)
                return
            journal.unlink(missing_ok=True)  # before creating the part, which it does not describe
            self._part = part.open("wb")
        _sync_folder(part.parent)

    def _continue(self, record: dict[str, Any], part: Path) -> None:
        if differences := _differences(record.get("settings") or {}, self.settings):
            raise ConfigurationError(
                f"{self.path} was started with {'; '.join(differences)}",
                remedy="repeat the command that started it, or start over: --force",
            )
        if not is_same_model(record["probe"], self.probe):
            raise ConfigurationError(
                f"{self.settings['model']} answers differently than when {self.path} was started",
                remedy="serve the model that started it, or start over: --force",
            )
        checkpoint = Checkpoint(**record["reached"])
        self._part = part.open("r+b")
        if self._part.seek(0, os.SEEK_END) < checkpoint.output_bytes:
            self._part.close()
            raise ConfigurationError(
                f"{part} is shorter than {self._sibling('journal')} says: it was modified",
                remedy="start over: --force",
            )
        # Lines after the checkpoint are requested again.
        self._part.truncate(checkpoint.output_bytes)
        self._part.seek(checkpoint.output_bytes)
        self.checkpoint = checkpoint

    def write(self, content: bytes, checkpoint: Checkpoint) -> None:
        """Write lines; persist them every few seconds. Raises HostError."""
        with as_host_error(self._sibling("part")):
            self._part.write(content)
        end = self.checkpoint.output_bytes + len(content)
        self.checkpoint = replace(checkpoint, output_bytes=end)
        if time.monotonic() - self._saved_at >= _CHECKPOINT_SECONDS:
            self.save()

    def save(self) -> None:
        """Sync the lines to disk, then write the journal."""
        with as_host_error(self._sibling("part")):
            self._part.flush()
            os.fsync(self._part.fileno())
        record = {
            "schema": SCHEMA,
            "settings": self.settings,
            "probe": dict(self.probe),
            "reached": asdict(self.checkpoint),
        }
        write_atomically(self._sibling("journal"), json.dumps(record) + "\n")
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """Rename the part to the final file."""
        self.save()
        part = self._sibling("part")
        with as_host_error(self.path):
            self._part.close()
            os.replace(part, self.path)
            self._sibling("journal").unlink()
            _sync_folder(self.path.parent)


def _differences(previous: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Describe the settings that differ."""
    names = sorted({*previous, *current})
    return [
        f"{'another' if name == 'input' else f'{name} {_value_text(previous.get(name))}, not'} "
        f"{'input' if name == 'input' else _value_text(current.get(name))}"
        for name in names
        if previous.get(name) != current.get(name)
    ]


def _value_text(value: Any) -> str:
    return "unset" if value is None else str(value)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, which persists new names in it; not every system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
