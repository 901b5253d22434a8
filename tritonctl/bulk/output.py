# SPDX-License-Identifier: Apache-2.0
"""Where lines go: standard output, or a file that is whole or not there, and is continued.

Until the last line, `OUT.part` holds the lines and `OUT.journal` says how many of them count. They
are on the disk before it says so: neither a killed process nor a power cut loses or doubles a line.
Then the part takes the file's name.
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

from tritonctl.bulk.probe import same
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.host.files import explained, if_free, read_record, write_atomically

SCHEMA = "tritonctl.bulk/1"
_CHECKPOINT_SECONDS = 2.0


@dataclass(frozen=True)
class Checkpoint:
    """How far a run has come. `input_bytes`: up to the next line; `output_bytes`: of the part.

    `input_hash`: SHA-256 of what was read, "" of a file, whose content is known. The rest: lines
    that have an error, that were cut, tokens of all.
    """

    lines: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    input_hash: str = ""
    failed: int = 0
    truncated: int = 0
    tokens: int = 0


class Output(Protocol):
    """Takes lines in their order."""

    reached: Checkpoint

    def write(self, content: bytes, reached: Checkpoint) -> None:
        """Lines, and how far the run has come with them; `output_bytes` is the output's affair."""

    def keep(self) -> None:
        """Make sure of what has been written."""

    def finish(self) -> None:
        """No more lines come."""


@dataclass
class Stream:
    """Standard output. `show` writes a text at once."""

    show: Callable[[str], None]
    reached: Checkpoint = Checkpoint()

    def write(self, content: bytes, reached: Checkpoint) -> None:
        """Lines."""
        self.show(content.decode())
        self.reached = reached

    def keep(self) -> None:
        """Nothing can be made sure of here."""

    def finish(self) -> None:
        """It has all been written."""


@dataclass
class CheckpointedFile:
    """A file that another run of the same command continues.

    `settings`: what must be the same; `probe`: what must be alike (`tritonctl.bulk.probe`).
    """

    path: Path
    settings: dict[str, Any]
    probe: Mapping[str, float]
    reached: Checkpoint = Checkpoint()
    _part: Any = None
    _kept_at: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, settings: dict[str, Any], probe: Mapping[str, float], *, force: bool
    ) -> Iterator[CheckpointedFile]:
        """A new file, or one that was begun. force: begin anew, whatever is there.

        Raises UsageError where the file is there already, or another process writes it;
        ConfigurationError where what was begun had other settings; HostError.
        """
        output = cls(path, settings, probe)
        with if_free(output._beside("lock")) as free:
            if not free:
                raise UsageError(
                    f"another tritonctl writes {path}", remedy="wait for it, or name another file"
                )
            output._begin(force=force)
            try:
                yield output
            finally:
                output._part.close()
                with suppress(OSError):  # where nobody may remove what is open
                    output._beside("lock").unlink()

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{ending}")

    def _begin(self, *, force: bool) -> None:
        part, journal = self._beside("part"), self._beside("journal")
        if self.path.exists() and not force:
            raise UsageError(
                f"{self.path} is there already", remedy="name another file, or replace it: --force"
            )
        record = {} if force else read_record(journal)
        with explained(part):
            if record and part.exists():
                self._continue(record, part)
                return
            journal.unlink(missing_ok=True)  # before the part that it is not about
            self._part = part.open("wb")
        _sync_folder(part.parent)

    def _continue(self, record: dict[str, Any], part: Path) -> None:
        if different := _differences(record.get("settings") or {}, self.settings):
            raise ConfigurationError(
                f"{self.path} was begun with {'; '.join(different)}",
                remedy="repeat the command that began it, or start over: --force",
            )
        if not same(record["probe"], self.probe):
            raise ConfigurationError(
                f"{self.settings['model']} answers otherwise than when {self.path} was begun",
                remedy="serve the model that began it, or start over: --force",
            )
        reached = Checkpoint(**record["reached"])
        self._part = part.open("r+b")
        if self._part.seek(0, os.SEEK_END) < reached.output_bytes:
            self._part.close()
            raise ConfigurationError(
                f"{part} is shorter than {self._beside('journal')} says: somebody has changed it",
                remedy="start over: --force",
            )
        # What came after the checkpoint is asked for again.
        self._part.truncate(reached.output_bytes)
        self._part.seek(reached.output_bytes)
        self.reached = reached

    def write(self, content: bytes, reached: Checkpoint) -> None:
        """Lines; every few seconds they are made sure of. Raises HostError."""
        with explained(self._beside("part")):
            self._part.write(content)
        end = self.reached.output_bytes + len(content)
        self.reached = replace(reached, output_bytes=end)
        if time.monotonic() - self._kept_at >= _CHECKPOINT_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Have the lines on the disk, then the journal."""
        with explained(self._beside("part")):
            self._part.flush()
            os.fsync(self._part.fileno())
        record = {
            "schema": SCHEMA,
            "settings": self.settings,
            "probe": dict(self.probe),
            "reached": asdict(self.reached),
        }
        write_atomically(self._beside("journal"), json.dumps(record) + "\n")
        self._kept_at = time.monotonic()

    def finish(self) -> None:
        """Give the part the file's name."""
        self.keep()
        part = self._beside("part")
        with explained(self.path):
            self._part.close()
            os.replace(part, self.path)
            self._beside("journal").unlink()
            _sync_folder(self.path.parent)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    names = sorted({*before, *now})
    return [
        f"{'another' if name == 'input' else f'{name} {_word(before.get(name))}, not'} "
        f"{'input' if name == 'input' else _word(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk when its folder is; not every system lets one say so."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
