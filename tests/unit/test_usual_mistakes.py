# SPDX-License-Identifier: Apache-2.0
"""docs/reference/usual-mistakes.md: each mistake is made, and the page has what is said of it."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.commands import run_here

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "usual-mistakes.md"
PROJECT = """\
schema: tritonctl/v1
models:
  speller:
    task: text_generation
    checkpoint: checkpoint
    engine:
      builder: openvino
      precision: int8
      max_batch_size: 8
      max_seq_len: 512
profiles:
  h100: {server: {mode: docker}}
"""
PARAMETER = 'models.speller.serving.config={engine: {parameters: {threads: "2"}}}'


class Row(NamedTuple):
    """A line of the page's table."""

    mistake: str
    command: str
    code: str
    message: str
    then: str


def rows() -> list[Row]:
    """The table. `…` stands for what differs from place to place."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]


def _without(text: str) -> str:
    """In the project file, that line is missing."""
    return PROJECT.replace(text, "")


def _instead(old: str, new: str) -> str:
    """In the project file, something else stands there."""
    assert old in PROJECT
    return PROJECT.replace(old, new)


# How each mistake is made: the project file, or another preparation of the folder.
FILES: dict[str, str] = {
    "`schema:` is left out": _without("schema: tritonctl/v1\n"),
    "a key is misspelt": _instead("max_batch_size", "max_batch_sise"),
    "a word where a number belongs": _instead("max_batch_size: 8", "max_batch_size: many"),
    "a tab in the file": _instead("    checkpoint:", "\tcheckpoint:"),
    "a checkpoint that is not there": _instead("checkpoint: checkpoint", "checkpoint: chekpoint"),
    "a builder is misspelt": _instead("builder: openvino", "builder: openvno"),
    "a precision that the builder lacks": _instead("precision: int8", "precision: fp8"),
}
ON_AN_ENGINE = {"a plain text as a parameter of Triton's", "the port is taken"}


def _empty(folder: Path) -> None:
    (folder / "tritonctl.yaml").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "repository" / "m" / "1").mkdir(parents=True)
    text = 'name: "m"\nbackend: "python"\nmax_batch_sise: 4\n'
    (folder / "repository" / "m" / "config.pbtxt").write_text(text, encoding="utf-8")
    (folder / "repository" / "m" / "1" / "model.py").touch()


def _gguf(folder: Path) -> None:
    _empty(folder)
    (folder / "model").mkdir()
    (folder / "model" / "q4.gguf").touch()


PREPARED: dict[str, Callable[[Path], None]] = {
    "no project file here": _empty,
    "a field that Triton does not know": _broken_config,
    "a model in llama.cpp's format": _gguf,
}


@contextmanager
def made(mistake: str, tmp_path: Path, built: Callable[[], Sandbox]) -> Iterator[tuple[Path, str]]:
    """The folder in which the mistake is made, and the port that is taken, if that is it."""
    if mistake in ON_AN_ENGINE:
        sandbox = built()
        sandbox.write()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            yield sandbox.root, str(taken.getsockname()[1])
        return
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "checkpoint").symlink_to(ROOT / "examples" / "number-speller" / "checkpoint")
    (folder / "tritonctl.yaml").write_text(FILES.get(mistake, PROJECT), encoding="utf-8")
    if mistake in PREPARED:
        PREPARED[mistake](folder)
    yield folder, ""


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.mistake)
def test_what_is_said(row: Row, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Exit code, message with its place, and the next thing to do: as the page has them."""
    with made(row.mistake, tmp_path, lambda: request.getfixturevalue("built")) as (folder, port):
        words = [word.replace("8001", port or "8001") for word in _words(row.command)]
        done = run_here(*words, cwd=folder)
    assert str(done.returncode) == row.code, done.stderr
    said = " ".join((done.stdout + done.stderr).replace("│", " ").split())
    said = said.replace(port, "8001") if port else said
    for text in (row.message, row.then):
        pattern = ".*".join(re.escape(part) for part in text.split("…"))
        assert re.search(pattern, said), (text, said)


def _words(command: str) -> list[str]:
    name, *words = command.strip("`").split()
    assert name == "tritonctl"
    return [PARAMETER if word == "…" else word for word in words]


def test_the_page_has_every_mistake() -> None:
    """Fifteen and more, each once; none that is prepared is left out."""
    named = [row.mistake for row in rows()]
    assert len(named) >= 15
    assert len(set(named)) == len(named)
    assert {*FILES, *PREPARED, *ON_AN_ENGINE} <= set(named)
    assert all(row.then for row in rows())
