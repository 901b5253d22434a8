# SPDX-License-Identifier: Apache-2.0
"""`tritonctl embed`, `classify` and `rerank`: every line has one line, in its order."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from tests.fakes.task_server import LIMIT, TaskServer, task_server, vector
from tests.json_page import as_documented

if TYPE_CHECKING:
    from tests.unit.conftest import Cli

TEXTS = [f"{number} " * (1 + number * 7 % 23) for number in range(1000)]


@pytest.fixture
def server() -> Iterator[TaskServer]:
    """One that answers at once."""
    with task_server() as server:
        yield server


def written(folder: Path, lines: Sequence[str | bytes], name: str = "lines.txt") -> Path:
    """A file of these lines."""
    file = folder / name
    file.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines))
    return file


def records(text: str) -> list[dict[str, Any]]:
    """JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def ask(cli: Cli, server: TaskServer, *arguments: str | Path) -> list[dict[str, Any]]:
    """The lines of a command that succeeds."""
    done = cli(*arguments, "--url", server.url, "--quiet")
    assert done.returncode == 0, done.stderr
    return records(done.stdout)


def test_embed(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """A thousand lines, which travel sorted by length, come out in their order."""
    given = ask(cli, server, "embed", "encoder", written(tmp_path, TEXTS))
    assert [one["index"] for one in given] == list(range(1000))
    assert [one["embedding"] for one in given] == [vector(text.encode()) for text in TEXTS]
    assert given[3] == {
        "index": 3,
        "embedding": vector(TEXTS[3].encode()),
        "num_input_tokens": len(TEXTS[3]),
        "truncated": False,
    }
    as_documented("embed", json.dumps(given[3]))
    assert server.most_at_once <= 4


def test_a_vector_is_exact(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """Both encodings hold the same FP32."""
    file = written(tmp_path, ["~" * 997])
    [plain] = ask(cli, server, "embed", "encoder", file)
    [packed] = ask(cli, server, "embed", "encoder", file, "--encoding", "base64")
    wanted = np.array(vector(b"~" * 997), dtype=np.float32)
    assert np.array_equal(np.array(plain["embedding"], dtype=np.float32), wanted)
    raw = np.frombuffer(base64.b64decode(packed["embedding"]), dtype="<f4")
    assert np.array_equal(raw, wanted)


def test_options_go_to_the_model(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """Prompt, dimensions, truncation, rows of a request."""
    file = written(tmp_path, ["a", "bb", "ccc"])
    options = ("--prompt-name", "query", "--dimensions", "2", "--no-truncate", "--rows", "2")
    given = ask(cli, server, "embed", "encoder", file, *options)
    assert [len(one["embedding"]) for one in given] == [2, 2, 2]
    asked = sorted(server.requests, key=lambda each: len(each["text_input"]))  # at once, any order
    assert [each["prompt_name"].tolist() for each in asked] == [[[b"query"]], [[b"query"]] * 2]
    assert not any(each["truncate"].any() for each in asked)


def test_classify(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """Objects with ids and pairs; the best labels."""
    lines = [
        {"id": "a", "text": "ab"},
        {"id": {"n": 2}, "text": "ab", "text_pair": "c"},
        {"text": "abc"},
    ]
    file = written(tmp_path, [json.dumps(line) for line in lines])
    given = ask(cli, server, "classify", "classifier", file, "--jsonl", "--labels", "2")
    assert [one["labels"][0] for one in given] == [
        {"label": "even", "score": 0.75},
        {"label": "odd", "score": 0.75},
        {"label": "odd", "score": 0.75},
    ]
    assert [one.get("id") for one in given] == ["a", {"n": 2}, None]
    assert "id" not in given[2]
    as_documented("classify", json.dumps(given[2]))
    assert all(len(one["labels"]) == 2 for one in given)


def test_entities(cli: Cli, server: TaskServer) -> None:
    """Of a model that classifies tokens; the text on the command line."""
    [given] = ask(cli, server, "classify", "names", "--text", "Ada\nLovelace")
    assert given["entities"] == [{"label": "N", "score": 0.5, "start": 0, "end": 12, "text": ""}]


def test_rerank(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """A score for each line; for each query its documents, best first."""
    file = written(tmp_path, ["none", "an ant"])
    given = ask(cli, server, "rerank", "reranker", file, "--query", "an")
    assert [one["score"] for one in given] == [0.0, 2.0]
    as_documented("rerank", json.dumps(given[0]))
    documents = ["none", "an ant and an ant", "an ant"]
    objects = [{"id": 1, "query": "an", "documents": documents}, {"query": "t", "text": "an ant"}]
    file = written(tmp_path, [json.dumps(one) for one in objects])
    first, second = ask(cli, server, "rerank", "reranker", file, "--jsonl")
    assert [(one["index"], one["score"]) for one in first["results"]] == [(1, 5), (2, 2), (0, 0)]
    assert first["results"][0]["num_input_tokens"] == len(documents[1])
    assert (first["id"], second["score"]) == (1, 1.0)
    texts = [part for text in documents for part in ("--text", text)]
    [one] = ask(cli, server, "rerank", "reranker", "--query", "an", *texts)
    assert one["results"] == first["results"]
    as_documented("rerank", json.dumps(one), 1)


def test_images(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """By option, and by a file of paths."""
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89PNG")
    [named] = ask(cli, server, "classify", "vision", "--image", image, "--labels", "1")
    [listed] = ask(cli, server, "classify", "vision", written(tmp_path, [str(image)]))
    assert named == {"index": 0, "labels": [{"label": "even", "score": 0.75}]}
    assert listed["labels"][0] == named["labels"][0]
    [tower] = ask(cli, server, "embed", "tower", "--image", image)
    assert tower["embedding"] == vector(b"\x89PNG")


def test_a_bad_line_ends_the_command(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """With its number and reason, exit code 2; the lines before it are there."""
    texts: list[str | bytes] = [*TEXTS[:30], b"ab\xff", *TEXTS[30:]]
    done = cli("embed", "encoder", written(tmp_path, texts), "--url", server.url)
    assert done.returncode == 2
    assert "lines.txt, line 31: invalid UTF-8: byte 3 is 0xff" in " ".join(done.stderr.split())
    assert "--on-error keep" in done.stderr
    assert len(records(done.stdout)) == 30


def test_errors_are_kept(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """A line in place of the answer, of what was never sent and of what the model refused."""
    lines: list[str | bytes] = [json.dumps({"id": n, "text": t}) for n, t in enumerate(TEXTS)]
    lines[7], lines[500] = json.dumps({"id": 7, "text": "BAD"}), json.dumps({"text": "NAN"})
    lines[40] = b"\xff"
    options = ("--jsonl", "--on-error", "keep", "--url", server.url)
    done = cli("embed", "encoder", written(tmp_path, lines), *options)
    assert done.returncode == 0, done.stderr
    given = records(done.stdout)
    assert [one["index"] for one in given] == list(range(1000))
    wrong = {one["index"]: one for one in given if "error" in one}
    assert sorted(wrong) == [7, 40, 500]
    assert wrong[7]["id"] == 7
    assert "text_input is bad" in wrong[7]["error"]
    assert wrong[40]["error"] == "invalid UTF-8: byte 1 is 0xff"
    assert "not finite numbers" in wrong[500]["error"]
    assert "3 failed" in done.stderr


def test_a_document_that_fails(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """It is named; the line has no scores."""
    line = json.dumps({"query": "q", "documents": ["a", "BAD"]})
    options = ("--jsonl", "--on-error", "keep")
    [given] = ask(cli, server, "rerank", "reranker", written(tmp_path, [line]), *options)
    assert given["error"].startswith("document 1: Triton refused the request")


def test_what_was_cut_is_told(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """In its line, and in the summary."""
    file = written(tmp_path, ["a", "x" * (LIMIT + 1)])
    done = cli("embed", "encoder", file, "--url", server.url)
    assert [one["truncated"] for one in records(done.stdout)] == [False, True]
    assert "2 lines" in done.stderr
    assert "1 cut" in done.stderr


def test_an_empty_file(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """Nothing in, nothing out; also as a file."""
    empty, output = written(tmp_path, []), tmp_path / "out.jsonl"
    assert ask(cli, server, "embed", "encoder", empty) == []
    assert ask(cli, server, "embed", "encoder", empty, "--output", output) == []
    assert output.read_bytes() == b""


def test_json_tells_about_the_file(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """One object; the answers are in the file."""
    output = tmp_path / "out.jsonl"
    file = written(tmp_path, TEXTS[:10])
    [given] = ask(cli, server, "embed", "encoder", file, "--output", output, "--json")
    assert given.pop("duration_seconds") > 0
    assert given == {
        "schema": "tritonctl.embed/1",
        "output": str(output),
        "lines": 10,
        "failed": 0,
        "truncated": 0,
        "num_input_tokens": sum(map(len, TEXTS[:10])),
        "new_lines": 10,
    }
    assert len(records(output.read_text())) == 10
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out.jsonl"]


def test_a_busy_server_is_asked_again(cli: Cli, server: TaskServer, tmp_path: Path) -> None:
    """Until it answers; not longer than agreed."""

    def busy(_: Any, context: Any) -> None:
        if len(server.requests) % 3 == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")

    server.before = busy
    file = written(tmp_path, TEXTS)
    given = ask(cli, server, "embed", "encoder", file)
    assert [one["embedding"] for one in given] == [vector(text.encode()) for text in TEXTS]
    server.before = lambda _, context: context.abort(
        grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"
    )
    began = time.monotonic()
    done = cli("embed", "encoder", file, "--url", server.url, "--retry-for", "0.2", "--json")
    assert done.returncode == 7
    assert records(done.stdout)[-1]["error"] == "ServerBusyError"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("embed", "classifier", "--text", "a"), "classifier classifies texts"),
        (("embed", "speller", "--text", "a"), "speller streams text"),
        (("classify", "encoder", "--text", "a"), "encoder embeds texts"),
        (("rerank", "plain", "--query", "q", "--text", "a"), "plain takes tensors"),
        (("embed", "tower", "--text", "a"), "tower takes images, not texts"),
        (("embed", "encoder", "--image", "a.png"), "encoder takes texts, not images"),
        (("embed", "encoder", "nowhere.txt"), "nowhere.txt cannot be read"),
        (("embed", "encoder", "a", "--text", "b"), "items come from 2 sources"),
        (
            ("embed", "tower", "--image", "a.png", "--dimensions", "2"),
            "does not support dimensions",
        ),
        (("embed", "encoder", "--text", "a", "--encoding", "hex"), "--encoding is `hex`"),
        (("embed", "encoder", "--text", "a", "--on-error", "go"), "--on-error is `go`"),
        (("embed", "encoder", "--text", "a", "--force"), "--force requires --output"),
        (("rerank", "reranker", "--text", "a"), "there is no query"),
        (("embed", "nobody", "--text", "a"), "unknown model: 'nobody'"),
    ],
)
def test_what_is_refused(
    cli: Cli, server: TaskServer, arguments: tuple[str, ...], problem: str
) -> None:
    """Exit code 2 before anything is asked, with what to do instead."""
    done = cli(*arguments, "--url", server.url)
    assert done.returncode == 2
    assert problem in " ".join(done.stderr.split())
    assert server.requests == []
