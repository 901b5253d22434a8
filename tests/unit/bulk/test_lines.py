# SPDX-License-Identifier: Apache-2.0
"""Lines as they come: where each ends, whatever the chunks, and what each asks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.bulk import lines as lines_module
from tritonctl.bulk.lines import LineSource, RawLine, raw_lines
from tritonctl.bulk.parsing import NO_ID, BadLineError, LineFormat
from tritonctl.bulk.rendering import result_line
from tritonctl.errors import UsageError
from tritonctl.protocol.tasks import TASKS, Relevance, ServedTask


def read(content: bytes, sizes: list[int] | None = None) -> list[RawLine]:
    """All lines of content that comes in chunks of these sizes, then whole."""
    file, left = io.BytesIO(content), list(sizes or ())
    chunks = raw_lines(lambda most: file.read(left.pop(0) if left else most))
    return [line for some in chunks for line in some]


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=20))
def test_lines_are_the_same_in_any_chunks(content: bytes, sizes: list[int]) -> None:
    """As many as end, and one more where the last lacks its end; the ends are the bytes so far."""
    found = read(content, sizes)
    parts = content.split(b"\n")
    if parts[-1] == b"":
        parts.pop()
    assert [line.content for line in found] == [part.removesuffix(b"\r") for part in parts]
    assert [line.index for line in found] == list(range(len(parts)))
    for number, line in enumerate(found):
        assert content[: line.end].removesuffix(b"\n") == b"\n".join(parts[: number + 1])


@given(st.binary(max_size=60), st.integers(0, 5))
def test_reading_goes_on_at_the_end_of_any_line(content: bytes, at: int) -> None:
    """The rest of the lines, with their numbers and ends."""
    whole = read(content)
    if not whole:
        return
    last = whole[min(at, len(whole) - 1)]
    file = io.BytesIO(content[last.end :])
    rest = [each for some in raw_lines(file.read, last.index + 1, last.end) for each in some]
    assert rest == whole[last.index + 1 :]


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error that names the line; the next one is read as usual."""
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10)
    first, second, third = read(b"x" * 30 + b"\nshort\n" + b"y" * 11, [7, 7, 7])
    assert (first.too_long, first.content, first.end) == (True, b"", 31)
    assert (second.too_long, second.content) == (False, b"short")
    assert third.too_long


def test_a_file_that_is_none() -> None:
    """Exit code 2 and the reason."""
    for path in (Path("nowhere.txt"), Path(__file__).parent):
        with pytest.raises(UsageError, match="cannot be read"):
            LineSource.open_path(path)


def test_a_file_that_changes(tmp_path: Path) -> None:
    """It is noticed, and its content has another hash."""
    file = tmp_path / "lines.txt"
    file.write_text("a\n")
    source = LineSource.open_path(file)
    before = source.content_hash()
    assert not source.is_changed
    file.write_text("b\nc\n")
    assert source.is_changed
    assert source.content_hash() != before
    source.close()


def served(task: str, *more: str) -> ServedTask:
    """A model of a task, with further inputs."""
    inputs = frozenset({*TASKS[task].inputs, *more})
    return ServedTask("m", TASKS[task], inputs, 8, "")


def asked(format_: LineFormat, content: bytes | dict[str, Any], index: int = 1) -> Any:
    """What a line asks."""
    text = json.dumps(content).encode() if isinstance(content, dict) else content
    return format_.parse(RawLine(index, text, 0))


TEXTS = LineFormat(served("embedding"))
OBJECTS = LineFormat(served("classification", "text_pair"), jsonl=True)
QUERIES = LineFormat(served("rerank"), jsonl=True)


def test_plain_text() -> None:
    """The line itself, an empty one too; a byte-order mark is none of the first line's text."""
    assert asked(TEXTS, "zwölf 🎉".encode()).rows == [{"text_input": "zwölf 🎉".encode()}]
    assert asked(TEXTS, b"").rows == [{"text_input": b""}]
    assert asked(TEXTS, b"\xef\xbb\xbfa", index=0).rows == [{"text_input": b"a"}]
    assert asked(TEXTS, b"a").id is NO_ID
    against = LineFormat(served("rerank"), query="q")
    assert asked(against, b"a").rows == [{"query": b"q", "text_input": b"a"}]


def test_objects() -> None:
    """Text, pair and id of any type; other fields are the user's own."""
    found = asked(OBJECTS, {"id": [7], "text": "a", "text_pair": "b", "date": "today"})
    assert found.rows == [{"text_input": b"a", "text_pair": b"b"}]
    assert found.id == [7]
    assert asked(OBJECTS, {"text": "a", "text_pair": None}).rows == [{"text_input": b"a"}]
    assert asked(OBJECTS, {"id": None, "text": "a"}).id is None


def test_queries() -> None:
    """One text, or documents that share a line of output; a query of the line goes first."""
    assert asked(QUERIES, {"query": "q", "text": "a"}).rows == [{"query": b"q", "text_input": b"a"}]
    several = asked(QUERIES, {"id": 1, "query": "q", "documents": ["a", "b"]})
    assert several.is_ranking
    assert several.rows == [
        {"query": b"q", "text_input": b"a"},
        {"query": b"q", "text_input": b"b"},
    ]
    assert asked(QUERIES, {"query": "q", "documents": []}).rows == []
    given = LineFormat(served("rerank"), jsonl=True, query="other")
    assert asked(given, {"text": "a"}).rows[0]["query"] == b"other"
    assert asked(given, {"query": "q", "text": "a"}).rows[0]["query"] == b"q"


def test_images(tmp_path: Path) -> None:
    """Each line is a path; JSON objects name it `image`."""
    file = tmp_path / "ä.png"
    file.write_bytes(b"\x89PNG")
    plain, objects = (LineFormat(served("image_embedding"), jsonl=jsonl) for jsonl in (False, True))
    assert asked(plain, str(file).encode()).rows == [{"image": b"\x89PNG"}]
    assert asked(objects, {"image": str(file), "id": "x"}).rows == [{"image": b"\x89PNG"}]
    with pytest.raises(BadLineError, match="pass images with --image"):
        asked(plain, b"\x89PNG\r")
    with pytest.raises(BadLineError, match="cannot be read: No such file"):
        asked(plain, b"nowhere.png")
    with pytest.raises(BadLineError, match="cannot be read"):
        asked(objects, {"image": "a\0b"})


@pytest.mark.parametrize(
    ("how", "content", "problem"),
    [
        (TEXTS, b"ab\xff", "invalid UTF-8: byte 3 is 0xff"),
        (TEXTS, b"\xed\xa0\x80", "invalid UTF-8: byte 1 is 0xed"),
        (OBJECTS, b"", "invalid JSON"),
        (OBJECTS, b"\xff", "invalid UTF-8"),
        (OBJECTS, b"[" * 100_000, "invalid JSON"),
        (OBJECTS, b'["a"]', "not a JSON object"),
        (OBJECTS, b"{}", "`text` is missing"),
        (OBJECTS, b'{"text": 7}', "`text` is 7, expected text"),
        (OBJECTS, b'{"text": null}', "`text` is null, expected text"),
        (OBJECTS, b'{"text": "\\ud83d"}', "`text` is not valid text: surrogates not allowed"),
        (OBJECTS, b'{"text": "a", "text_pair": []}', "`text_pair` is \\[\\], expected text"),
        (QUERIES, b'{"text": "a"}', "`query` is missing"),
        (QUERIES, b'{"query": "a"}', "`text` is missing"),
        (QUERIES, b'{"query": "a", "documents": "b"}', "`documents` is not a list"),
        (QUERIES, b'{"query": "a", "documents": [1]}', "`documents` is 1, expected text"),
        (
            LineFormat(served("embedding"), jsonl=True),
            b'{"text": "a", "text_pair": "b"}',
            "m does not accept `text_pair`",
        ),
    ],
)
def test_bad_lines(how: LineFormat, content: bytes, problem: str) -> None:
    """Each with its reason."""
    with pytest.raises(BadLineError, match=problem):
        asked(how, content)


def test_too_long_lines() -> None:
    """Told, not sent."""
    with pytest.raises(BadLineError, match="longer than 64 MiB"):
        TEXTS.parse(RawLine(0, b"", 9, too_long=True))


@pytest.mark.parametrize(
    ("scores", "saturated"),
    [((1.0, 0.4, 1.0), 2), ((0.0, 1.0), 2), ((1.0, 0.4), None), ((3.5, 3.5), None)],
)
def test_rankings_of_saturated_scores(scores: tuple[float, ...], saturated: int | None) -> None:
    """Their order says nothing, and the line says how many there are."""
    results = [Relevance(0, score, None, None) for score in scores]
    line = json.loads(result_line(0, NO_ID, results, is_ranking=True))
    assert line.get("saturated") == saturated
    assert [entry["score"] for entry in line["results"]] == sorted(scores, reverse=True)


def test_rankings_by_logits() -> None:
    """Scores that are equal are ranked by their logits, and nothing says saturated."""
    results = [Relevance(0, 1.0, logit=logit) for logit in (18.0, 40.0, -3.0)]
    line = json.loads(result_line(0, NO_ID, results, is_ranking=True))
    assert [entry["index"] for entry in line["results"]] == [1, 0, 2]
    assert "saturated" not in line
