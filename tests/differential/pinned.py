# SPDX-License-Identifier: Apache-2.0
"""Repositories over which server and checker once disagreed, kept with what the server did."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.differential.agreement import Verdict
from tests.differential.drafts import DECOUPLED, PYTHON, Case, names_in
from tests.differential.pool import pool_files
from tritonctl.checks.examples.files import ExampleFile

FOLDER = Path(__file__).parent / "disagreements"
_LOADS = "# tritonserver 2.51 loads it\n"
_REFUSES = "# tritonserver 2.51 refuses it: "
_FILE = re.compile(r"^=== (\S.*?)(?: \((usual|decoupled)\))?\n", re.MULTILINE)
_CODE = {"usual": PYTHON, "decoupled": DECOUPLED}


@dataclass(frozen=True)
class Pinned:
    """One of them."""

    name: str
    case: Case
    refusal: str


def pinned() -> list[Pinned]:
    """All of them, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.txt"))]


def _read(path: Path) -> Pinned:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    head, *parts = _FILE.split(text)
    assert head.startswith((_LOADS, _REFUSES)), path
    refusal = head.splitlines()[0].removeprefix(_REFUSES) if head.startswith(_REFUSES) else ""
    files: dict[str, str | ExampleFile] = {}
    for name, code, content in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        files[name] = _CODE[code] if code else _file(content)
    return Pinned(path.stem, Case((path.stem,), files | _used(files)), refusal)


def _used(files: dict[str, str | ExampleFile]) -> dict[str, str | ExampleFile]:
    return dict(pool_files(names_in(files, r"pool_\w+")))


def _file(content: str) -> str | ExampleFile:
    try:
        content.encode()
    except UnicodeEncodeError:
        return ExampleFile(content.encode("utf-8", "surrogateescape"))
    return content


def as_pinned(verdict: Verdict, number: int) -> bytes:
    """How a verdict is written down, under the names that it was drawn with."""
    own = f"case{number}_"
    refusal = verdict.refusal.replace(own, "case_").splitlines()
    parts = [f"{_REFUSES}{refusal[0]}\n" if refusal else _LOADS]
    usual = {text: name for name, text in _CODE.items()}
    for name, file in verdict.case.files.items():
        if name.startswith("pool_"):
            continue
        content = file.encode() if isinstance(file, str) else file.content
        text = content.decode("utf-8", "surrogateescape")
        code = f" ({usual[text]})" if text in usual else ""
        parts.append(f"=== {name}{code}\n{'' if code else text}".replace(own, "case_"))
        # A file's last line must end, or the next one's name would not begin a line.
        parts.append("" if parts[-1].endswith("\n") else "\n")
    return "".join(parts).encode("utf-8", "surrogateescape")
