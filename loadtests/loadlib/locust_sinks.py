# SPDX-License-Identifier: Apache-2.0
"""Where records and progress go: into a folder and to standard output, or to Locust's master."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Protocol

from hdrh.histogram import HdrHistogram

from loadlib.progress import METRICS, new_histogram
from loadlib.records import RecordFile
from loadlib.share import FULL, INTERRUPTED

RECORDS, PROGRESS = "tritonctl_records", "tritonctl_progress"
_QUANTILES = (50.0, 90.0, 99.0, 99.9)


class Sink(Protocol):
    """Takes what one or several workers tell. `trouble`: why no more should be sent."""

    trouble: str | None

    def records(self, worker: int, lines: str) -> None:
        """Records of requests that have ended."""

    def progress(self, line: dict[str, Any]) -> None:
        """The line of a second, or a worker's last."""


class MasterSink:
    """Sends everything to the master, in order."""

    trouble: str | None = None

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def records(self, worker: int, lines: str) -> None:
        """A message, if there is something to say."""
        if lines:
            self._runner.send_message(RECORDS, {"worker": worker, "lines": lines})

    def progress(self, line: dict[str, Any]) -> None:
        """A message."""
        self._runner.send_message(PROGRESS, line)


class FolderSink:
    """Keeps everything: the contract's files if there is a folder, merged histograms anyway."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[int, RecordFile] = {}
        self._merged = {name: new_histogram() for name in METRICS}
        self.trouble: str | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def records(self, worker: int, lines: str) -> None:
        """Appended to the worker's file."""
        if self._folder is None:
            return
        if worker not in self._files:
            self._files[worker] = RecordFile(self._folder / f"records-{worker}.jsonl")
        file = self._files[worker]
        file.add(lines)
        file.flush()
        if file.failure:
            self.trouble = FULL

    def progress(self, line: dict[str, Any]) -> None:
        """Printed; histograms of a worker's whole run are merged, never averaged."""
        if line.get("finished"):
            for name in METRICS:
                self._merged[name].add(HdrHistogram.decode(line["histograms"][name]))
            file = self._files.get(line["worker"])
            line = line | {"lost": file.lost if file else 0}
            if self.trouble == FULL:
                line["reason"] = FULL
        if self._folder is not None:
            self._say(line)

    def _say(self, line: dict[str, Any]) -> None:
        try:
            sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.trouble = self.trouble or INTERRUPTED  # whoever listened is gone

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def table(self) -> list[str]:
        """Percentiles over all workers, as lines for people."""
        rows = [f"{'ms':>6} {'count':>9} " + " ".join(f"{f'P{q:g}':>10}" for q in _QUANTILES)]
        for name, histogram in self._merged.items():
            count = histogram.get_total_count()
            values = [histogram.get_value_at_percentile(q) / 1000 for q in _QUANTILES]
            if count:
                rows.append(f"{name:>6} {count:>9} " + " ".join(f"{v:>10.3f}" for v in values))
        return rows
