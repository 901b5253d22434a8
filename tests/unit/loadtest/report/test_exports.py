# SPDX-License-Identifier: Apache-2.0
"""requests.csv: a line per request that any reader of RFC 4180 gets back as it was."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.loadtest_records import SyntheticRun
from tests.report_page import finished
from tritonctl.loadtest.analysis.records import read_records
from tritonctl.loadtest.report.exports import COLUMNS, write_requests

RUN = SyntheticRun(seconds=5, rate=40, coalesce=2, error_share=0.1, cancel_share=0.1)
MESSAGE = 'queue, "full"\r\nline two; ünïcode 七'
DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "load-tests.md"


def rows(path: Path) -> list[dict[str, str]]:
    """The CSV read back."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_every_request_is_a_line(tmp_path: Path) -> None:
    """Times, durations, tokens and failures as recorded, in the order of the plan."""
    folder = finished(RUN, tmp_path / "run")
    path = write_requests(folder)
    assert path == folder / "requests.csv"
    records = read_records(folder)
    found = rows(path)
    assert len(found) == len(records)
    assert {record.outcome for record in records} == {"ok", "error", "cancelled"}
    for row, record in zip(found, records, strict=True):
        assert list(row) == list(COLUMNS)
        assert int(row["index"]) == record.index
        assert row["class"] == record.class_name
        assert row["outcome"] == record.outcome
        assert row["error_kind"] == (record.error.kind if record.error else "")
        assert round(float(row["planned_s"]) * 1e6) == record.planned
        assert round(float(row["end_s"]) * 1e6) == record.end
        assert round(float(row["e2e_ms"]) * 1e3) == record.end - record.planned
        assert round(float(row["service_e2e_ms"]) * 1e3) == record.end - record.sent
        assert int(row["output_tokens"]) == record.output_tokens
        assert int(row["responses"]) == len(record.at)
        if record.at:
            assert round(float(row["ttft_ms"]) * 1e3) == record.at[0] - record.planned
        else:
            assert row["ttft_ms"] == ""


def test_tpot_and_the_longest_gap(tmp_path: Path) -> None:
    """By their definitions, with several tokens to a response."""
    folder = finished(RUN, tmp_path / "run")
    for row, record in zip(rows(write_requests(folder)), read_records(folder), strict=True):
        if len(record.at) < 2 or record.output_tokens is None:
            continue
        mean = (record.at[-1] - record.at[0]) / (record.output_tokens - 1) / 1e3
        assert float(row["tpot_ms"]) == pytest.approx(mean, abs=1e-5)
        gap = max(b - a for a, b in zip(record.at, record.at[1:], strict=False)) / 1e3
        assert float(row["longest_gap_ms"]) == pytest.approx(gap, abs=1e-5)


def test_text_with_commas_quotes_and_lines_comes_back(tmp_path: Path) -> None:
    """Quoted as RFC 4180 says; lines end with CR LF."""
    folder = replace(RUN, error_share=1.0).write(tmp_path / "run")
    text = (folder / "records.jsonl").read_text(encoding="utf-8")
    text = text.replace("Exceeds maximum queue size", json.dumps(MESSAGE)[1:-1])
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    path = write_requests(folder, tmp_path / "elsewhere.csv")
    assert {row["error_message"] for row in rows(path)} == {MESSAGE}
    assert path.read_bytes().startswith(b",".join(c.encode() for c in COLUMNS) + b"\r\n")
    assert not (folder / "requests.csv").exists()


def test_tensors_have_no_token_times(tmp_path: Path) -> None:
    """Empty cells, not zeros."""
    folder = finished(replace(RUN, kind="tensors"), tmp_path / "run")
    for row in rows(write_requests(folder)):
        assert row["ttft_ms"] == row["tpot_ms"] == row["output_tokens"] == ""


def test_every_column_is_documented() -> None:
    """docs/reference/load-tests.md has a line for each, and none for others."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.partition("## requests.csv")[2].partition("\n## ")[0]
    documented = [
        name
        for cell in re.findall(r"^\| ([^|]*) \|", section, flags=re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert documented == list(COLUMNS)
