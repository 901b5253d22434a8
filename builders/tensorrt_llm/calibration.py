# SPDX-License-Identifier: Apache-2.0
"""Reads the texts that activation ranges are measured on.

Standard library, and pyarrow for Parquet files.
"""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError
from buildlib.program import print_line
from buildlib.request_types import RequestedCalibration
from recipes import MIN_SAMPLES

_LINE = '{"text": "..."} or {"text_input": "...", "text_output": "..."}'
_KINDS = (".txt", ".jsonl", ".parquet")


def read_samples(calibration: RequestedCalibration, tokenizer: Any) -> list[list[int]]:
    """Return the token ids of samples chosen by the seed, each cut to max_seq_len tokens.

    Raises:
        BuildError: the data is unreadable or malformed, or has too few samples.
    """
    texts, count = _sample_texts(
        _read_texts(calibration.data), calibration.samples, calibration.seed
    )
    if len(texts) < MIN_SAMPLES:
        raise BuildError(
            f"{calibration.data}: holds {count} samples to calibrate on, and at least "
            f"{MIN_SAMPLES} are needed ({calibration.samples} requested)",
            remedy="Set engine.calibration.data to more text: a sample per line, like the "
            "requests to the model.",
        )
    if count < calibration.samples:
        print_line(
            f"calibrates on {count} samples, all of the data ({calibration.samples} requested)"
        )
    encoded = (tokenizer.encode(text, add_special_tokens=True).ids for text in texts)
    return [ids[: calibration.max_seq_len] for ids in encoded]


def group_by_length(samples: list[list[int]], size: int) -> list[list[list[int]]]:
    """Group samples of equal length into batches, so that no padding is measured."""
    ordered = sorted(samples, key=len)
    groups: list[list[list[int]]] = []
    for _, same_length in itertools.groupby(ordered, key=len):
        group = list(same_length)
        groups += [group[start : start + size] for start in range(0, len(group), size)]
    return groups


def _sample_texts(texts: Iterable[str], count: int, seed: int) -> tuple[list[str], int]:
    """Return `count` uniformly sampled texts, and the number of texts."""
    draw = random.Random(seed)  # noqa: S311 - a choice of samples, not a secret
    sample: list[str] = []
    total = 0
    for total, text in enumerate(texts, start=1):
        if len(sample) < count:
            sample.append(text)
        elif (index := draw.randrange(total)) < count:
            sample[index] = text
    return sample, total


def _read_texts(data: Path) -> Iterator[str]:
    if data.is_dir():
        files = sorted(path for path in data.rglob("*") if path.suffix in _KINDS)
        if not files:
            raise BuildError(
                f"{data}: the folder holds no calibration data ({', '.join(_KINDS)})",
                remedy="Put a text file with a sample per line there, or name another folder.",
            )
        for file in files:
            yield from _file_texts(file)
    else:
        yield from _file_texts(data)


def _file_texts(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        yield from _parquet_texts(path)
        return
    for number, line in _lines(path):
        yield _parse_json_line(f"{path}:{number}", line) if path.suffix == ".jsonl" else line


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except OSError as error:
        raise BuildError(
            f"{path}: the calibration data cannot be read: {error.strerror}",
            remedy="Set engine.calibration.data to a text file, a JSONL file or a folder of them.",
        ) from error
    except UnicodeDecodeError as error:
        raise BuildError(
            f"{path}: is not UTF-8 text: {error.reason}",
            remedy="Save the file as UTF-8, or name it as what it is (.parquet).",
        ) from error


def _parse_json_line(location: str, line: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"{location}: is not valid JSON: {error.msg} (column {error.colno})"
        raise BuildError(problem, remedy=f"Write the line as {_LINE}.") from error
    text = _entry_text(entry) if isinstance(entry, dict) else None
    if not text:
        problem = f"{location}: has no text to calibrate on"
        raise BuildError(problem, remedy=f"Write the line as {_LINE}.")
    return text


def _entry_text(entry: dict[str, Any]) -> str | None:
    """Return an entry's text with the answer, which is most of a decoder's work."""
    if isinstance(entry.get("text"), str):
        return str(entry["text"])
    if isinstance(entry.get("text_input"), str):
        return str(entry["text_input"]) + str(entry.get("text_output") or "")
    return None


def _parquet_texts(path: Path) -> Iterator[str]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BuildError(
            f"{path}: is a Parquet file, and this environment has no pyarrow to read it",
            remedy=f"Save the texts as JSON lines, {_LINE}, or use a runner with pyarrow.",
        ) from error
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
        for entry in batch.to_pylist():
            text = _entry_text(entry)
            if text is None:
                problem = f"{path}: has no column text or text_input"
                raise BuildError(problem, remedy="Rename the column that holds the texts.")
            if text.strip():
                yield text
