# SPDX-License-Identifier: Apache-2.0
"""Export a load test for other tools: `requests.csv`, one line per request (RFC 4180)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

from tritonctl.host.files import write_atomically
from tritonctl.loadtest.report.run import TimedRequest, load_run

REQUESTS = "requests.csv"

Value = str | int | float | None
# docs/reference/load-tests.md describes them.
COLUMNS: dict[str, Callable[[TimedRequest], Value]] = {
    "index": lambda r: r.record.index,
    "class": lambda r: r.record.class_name,
    "worker": lambda r: r.record.worker,
    "session": lambda r: r.record.session,
    "turn": lambda r: r.record.turn,
    "outcome": lambda r: r.record.outcome,
    "error_kind": lambda r: r.record.error.kind if r.record.error else None,
    "error_message": lambda r: r.record.error.message if r.record.error else None,
    "planned_s": lambda r: r.planned_s,
    "sent_s": lambda r: r.sent_s,
    "first_token_s": lambda r: r.record.at[0] / 1e6 if r.record.at else None,
    "last_token_s": lambda r: r.record.at[-1] / 1e6 if r.record.at else None,
    "end_s": lambda r: r.end_s,
    "send_lag_ms": lambda r: r.send_lag_ms,
    "ttft_ms": lambda r: r.ttft_ms,
    "service_ttft_ms": lambda r: r.service_ttft_ms,
    "e2e_ms": lambda r: r.e2e_ms,
    "service_e2e_ms": lambda r: r.service_e2e_ms,
    "tpot_ms": lambda r: r.tpot_ms,
    "longest_gap_ms": lambda r: r.max_gap_ms,
    "responses": lambda r: len(r.record.at),
    "input_tokens": lambda r: r.record.input_tokens,
    "output_tokens": lambda r: r.record.output_tokens,
    "user": lambda r: r.record.user,
    "version": lambda r: r.record.version,
    "resumes": lambda r: r.record.resumes,
}


def write_requests(folder: Path, output: Path | None = None) -> Path:
    """Write the CSV of a run's folder. Raises UsageError, ConfigurationError, HostError."""
    path = output or folder / REQUESTS
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for request in load_run(folder).requests:
        writer.writerow([_csv_value(column(request)) for column in COLUMNS.values()])
    write_atomically(path, text.getvalue())
    return path


def _csv_value(value: Value) -> Value:
    """Format a value; floats keep microsecond precision only."""
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return value
