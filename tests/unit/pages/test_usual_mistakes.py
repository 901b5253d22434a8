# SPDX-License-Identifier: Apache-2.0
"""Usual mistakes: each is made; the message is that of docs/how-to/troubleshoot.md or MISSPELT."""

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

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "troubleshoot.md"
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


# Not on the page: the message alone is enough for a reader.
MISSPELT = [
    Row(
        "a key is misspelt",
        "`tritonctl plan`",
        "3",
        "tritonctl.yaml:9: unknown key `max_batch_sise` in `models.speller.engine`",
        "did you mean `max_batch_size`? valid keys: …",
    ),
    Row(
        "a builder is misspelt",
        "`tritonctl build`",
        "3",
        "models.speller: unknown builder `openvno`",
        "did you mean `openvino`? expected one of …",
    ),
    Row(
        "a precision that the builder lacks",
        "`tritonctl build`",
        "3",
        "models.speller: builder openvino has no precision `fp8`",
        "expected one of fp32, fp16, int8, int4",
    ),
    Row(
        "a setting without its value",
        "`tritonctl plan --set server.grpc_port`",
        "2",
        "--set server.grpc_port: `server.grpc_port` is not KEY=VALUE",
        "write for example --set server.grpc_port=0",
    ),
    Row(
        "a profile is misspelt",
        "`tritonctl plan --env h10`",
        "2",
        "tritonctl.yaml:11: unknown profile `h10`",
        "did you mean `h100`? profiles: h100",
    ),
    Row(
        "an unknown GPU",
        "`tritonctl plan --gpus H1000`",
        "2",
        "unknown GPU `H1000`",
        "did you mean `H100`? …",
    ),
    Row(
        "a model is misspelt",
        "`tritonctl plan speler`",
        "2",
        "the project has no model `speler`",
        "did you mean `speller`? its models: speller",
    ),
    Row(
        "a verb is misspelt",
        "`tritonctl bild`",
        "2",
        "No such command 'bild'.",
        "Did you mean 'build'?",
    ),
    Row(
        "a word as an option's number",
        "`tritonctl loadtest run --duration 5s`",
        "2",
        "Invalid value for '--duration': expected a number, got `5s`",
        "Try 'tritonctl loadtest run -h' for help.",
    ),
]


def rows() -> list[Row]:
    """The table and MISSPELT. `…` stands for what differs from place to place."""
    _, _, section = PAGE.read_text("utf-8").partition("## Usual mistakes")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    listed = [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]
    return listed + MISSPELT


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


def test_every_mistake_is_listed() -> None:
    """Fifteen and more, each once; none that is prepared is left out."""
    named = [row.mistake for row in rows()]
    assert len(named) >= 15
    assert len(set(named)) == len(named)
    assert {*FILES, *PREPARED, *ON_AN_ENGINE} <= set(named)
    assert all(row.then for row in rows())
