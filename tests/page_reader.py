# SPDX-License-Identifier: Apache-2.0
"""Follows a page of the documentation to the letter: its files written, its commands typed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(
    r'^ *```(?P<language>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^ *```$',
    re.MULTILINE | re.DOTALL,
)
# On a busy machine a load test is no valid measurement, and says so.
_MEASURES = re.compile(r"tritonctl (?:loadtest (?:run|capacity)|tune)\b")


class Block(NamedTuple):
    """A fenced block; file: where its text belongs, "" for what is only shown."""

    language: str
    file: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(one["language"], one["file"] or "", dedent(one["text"])) for one in found]


def typed(block: Block) -> list[str]:
    """The commands of a block of the language `sh`; a `bash` one is for another machine."""
    lines = block.text.replace("\\\n", " ").splitlines() if block.language == "sh" else []
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


class Reader:
    """Somebody with a shell, who starts in `folder`; outputs: what each command printed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.outputs: dict[str, str] = {}
        self._environment = dict(environment)

    def follow(
        self,
        page: str,
        *,
        leaving_out: Collection[str] = (),
        instead: Mapping[str, str] | None = None,
    ) -> None:
        """Do what docs/`page` says, but for these commands; instead: parts of them to replace."""
        for block in blocks(DOCS / page):
            if block.file:
                file = self.folder / block.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
            for command in typed(block):
                if not any(command.startswith(one) for one in leaving_out):
                    self.type(_with(command, instead or {}))

    def type(self, command: str) -> str:
        """Run one command; where it leaves the shell is where the next one begins."""
        end = self.folder / ".where"
        script = f"{command}\ncode=$?; pwd > '{end}'; exit $code"
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        self.folder = Path(end.read_text(encoding="utf-8").strip())
        end.unlink()
        allowed = (0, 8, 9) if _MEASURES.search(command) else (0,)
        assert done.returncode in allowed, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        self.outputs[command] = done.stdout
        return done.stdout


def _with(command: str, instead: Mapping[str, str]) -> str:
    for old, new in instead.items():
        command = command.replace(old, new)
    return command


@contextmanager
def reader(folder: Path, environment: Mapping[str, str]) -> Iterator[Reader]:
    """A reader whose servers are stopped at the end, whatever happens."""
    one = Reader(folder, environment)
    try:
        yield one
    finally:
        for project in folder.rglob("tritonctl.yaml"):
            command = ["tritonctl", "down", "--project", str(project)]
            subprocess.run(command, env=dict(environment), capture_output=True, check=False)
