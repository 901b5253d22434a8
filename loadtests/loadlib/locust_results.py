# SPDX-License-Identifier: Apache-2.0
"""The results of all workers: records in a folder, progress on standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from loadlib.json_lines import encode_line
from loadlib.progress import METRICS, new_histogram
from loadlib.records import RecordFile, check_writable
from loadlib.worker_share import DISK_FULL, INTERRUPTED

_QUANTILES = (50.0, 90.0, 99.0, 99.9)


class RunResults:
    """Writes records if there is a folder, and merges histograms in any case.

    `end_reason` says why the run must end early. Raises RunRefusedError for an unwritable folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[int, RecordFile] = {}
        self._merged = {name: new_histogram() for name in METRICS}
        self.end_reason: str | None = None
        if folder is not None:
            check_writable(folder)

    def add_records(self, worker: int, lines: str) -> None:
        """Append records to the worker's file."""
        if self._folder is None:
            return
        if worker not in self._files:
            self._files[worker] = RecordFile(self._folder / f"records-{worker}.jsonl")
        file = self._files[worker]
        file.add(lines)
        file.flush()
        if file.failure:
            self.end_reason = DISK_FULL

    def add_progress(self, line: dict[str, Any]) -> None:
        """Print a progress line; merge the histograms of a worker's last line."""
        if line.get("finished"):
            for name in METRICS:
                self._merged[name].add(HdrHistogram.decode(line["histograms"][name]))
            file = self._files.get(line["worker"])
            line = line | {"lost": file.lost if file else 0}
            if self.end_reason == DISK_FULL:
                line["reason"] = DISK_FULL
        if self._folder is not None:
            self._print(line)

    def _print(self, line: dict[str, Any]) -> None:
        try:
            sys.stdout.write(encode_line(line))
            sys.stdout.flush()
        except BrokenPipeError:
            self.end_reason = self.end_reason or INTERRUPTED  # the reader has exited

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def table(self) -> list[str]:
        """Return the percentiles over all workers as text lines."""
        rows = [f"{'ms':>6} {'count':>9} " + " ".join(f"{f'P{q:g}':>10}" for q in _QUANTILES)]
        for name, histogram in self._merged.items():
            count = histogram.get_total_count()
            values = [histogram.get_value_at_percentile(q) / 1000 for q in _QUANTILES]
            if count:
                rows.append(f"{name:>6} {count:>9} " + " ".join(f"{v:>10.3f}" for v in values))
        return rows
