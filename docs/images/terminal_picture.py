# SPDX-License-Identifier: Apache-2.0
"""Records docs/images/terminal.svg: real commands, what they print and when, in a moving picture.

python docs/images/terminal_picture.py     # twice: what is installed once is no part of it
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from unicodedata import combining, east_asian_width

PICTURE = Path(__file__).with_name("terminal.svg")
EXAMPLE = Path(__file__).parents[2] / "examples" / "number-speller"
COMMANDS = (
    "tritonctl init number-speller --name speller",
    "tritonctl build",
    "tritonctl up",
    "tritonctl check",
    'tritonctl generate speller "7342 in English:"',
    'tritonctl generate speller "70615 in Chinese:"',
    "tritonctl down",
)
COLUMNS = 112
# What is longer is cut to this, seconds; typing takes its time, too.
LONGEST_PAUSE, PER_KEY, BEFORE_ENTER = 1.4, 0.03, 0.5
WIDTH, LINE, MARGIN, TITLE = 8.4, 19, 16, 34
_PORTS = {f"TRITONCTL_SERVER__{name}_PORT": "0" for name in ("GRPC", "HTTP", "METRICS")}


@dataclass(frozen=True)
class Piece:
    """Text that appears at a time, in seconds from the beginning; typed: by the reader."""

    at: float
    text: str
    typed: bool = False


def main() -> None:
    """Record and draw."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLE / "checkpoint", Path(folder, "number-speller"))
        pieces = list(record(Path(folder)))
    PICTURE.write_text(drawn(pieces), encoding="utf-8")


def record(folder: Path) -> Iterator[Piece]:
    """Every command typed, and what it printed, with pauses cut."""
    environment = os.environ | _PORTS | {"COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    now = 0.5
    for command in COMMANDS:
        yield Piece(now, "$ ")
        for key in command:
            now += PER_KEY
            yield Piece(now, key, typed=True)
        now += BEFORE_ENTER
        yield Piece(now, "\n")
        for waited, text in printed(command, folder, environment):
            now += min(waited, LONGEST_PAUSE)
            yield Piece(now, text.replace(str(folder), "~"))
        now += LONGEST_PAUSE


def printed(command: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[float, str]]:
    """What a command prints, in the pieces in which it comes, with the seconds before each."""
    with subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        last, kept = time.monotonic(), b""
        while process.stdout and (got := os.read(process.stdout.fileno(), 4096)):
            kept += got
            try:
                text = kept.decode("utf-8")
            except UnicodeDecodeError:  # the rest of a character comes with the next piece
                continue
            kept, now = b"", time.monotonic()
            yield now - last, text
            last = now
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")


def drawn(pieces: list[Piece]) -> str:
    """The picture. Without animation, everything is there at once."""
    parts, row, column = [], 0, 0
    for piece in pieces:
        for index, line in enumerate(piece.text.split("\n")):
            if index:
                row, column = row + 1, 0
            for start in range(0, len(line), COLUMNS):
                if start:
                    row, column = row + 1, 0
                part = line[start : start + COLUMNS]
                if part.strip():
                    parts.append(_text(part, row, column, piece))
                column += sum(map(_cells, part))
    width, height = COLUMNS * WIDTH + 2 * MARGIN, (row + 1) * LINE + TITLE + MARGIN
    lights = "".join(
        f'<circle cx="{20 + 18 * place}" cy="17" r="6" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"
  aria-label="tritonctl from a checkpoint to streamed text, recorded in a terminal">
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d6deeb;
  white-space: pre; }}
.typed {{ fill: #ffffff; font-weight: bold; }} .prompt, .done {{ fill: #7ee787; }}
.told {{ fill: #9aa7b5; }}
text {{ animation: appear 1ms backwards; }}
@keyframes appear {{ from {{ visibility: hidden; }} to {{ visibility: visible; }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#161b22"/>{lights}
{chr(10).join(parts)}
</svg>
"""


def _text(part: str, row: int, column: int, piece: Piece) -> str:
    kind = "typed" if piece.typed else "prompt" if part == "$ " else _kind(part)
    named = f' class="{kind}"' if kind else ""
    cells = sum(map(_cells, part))
    if cells != len(part):  # no font of the reader's decides how wide these are
        named += f' textLength="{cells * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
    x, y = MARGIN + column * WIDTH, TITLE + MARGIN + row * LINE
    return (
        f'<text x="{x:.1f}" y="{y}"{named} '
        f'style="animation-delay:{piece.at:.2f}s">{escape(part)}</text>'
    )


def _kind(line: str) -> str:
    return "done" if line.startswith("✓") else ""


def _cells(character: str) -> int:
    """How many columns it takes."""
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


if __name__ == "__main__":
    main()
