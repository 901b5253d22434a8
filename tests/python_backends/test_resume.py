# SPDX-License-Identifier: Apache-2.0
"""A stream that broke off and goes on behind `resume_ids`: the text is that of an unbroken one.

Streams run as in a server (watch, take, pack, unpack, decode alone). They are cut behind every
response; a second stream, which knows only what a client has, makes the rest.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from textlib.errors import RequestError
from textlib.scheduling.decoder_loop import DecoderLoop
from textlib.scheduling.decoder_stream import DecoderStream, open_stop_watch
from textlib.tokens.detokenize import decode_chunk
from textlib.tokens.resume_check import DIGEST_PARAMETER, check_resumed_text
from textlib.tokens.token_bytes import TokenTable, load_token_bytes
from textlib.tokens.token_chunk import SLOTS, FinishReason, TokenChunk, pack, unpack
from textlib.triton.request_tensors import (
    GenerationRequest,
    SequenceLimits,
    read_generation_request,
)
from textlib.triton.sampling import SamplingParams
from tokenizers import Tokenizer

from tests import sample_tokenizers
from tests.examples import examples

from .test_decoder_loop import PATIENCE, RecordingSink, ScriptedEngine
from .test_exactness import PIECES, cuts, positions, texts

NO_SINK: Any = None  # take() sends nothing
EXAMPLES = examples(40)
BUDGET = 100_000


class Script:
    """What an engine would make, a tokenizer's table, the request; streams of it."""

    def __init__(self, table: TokenTable, ids: Sequence[int], **asked: Any) -> None:
        self.table = table
        self.ids = list(ids)
        self.prompt = asked.pop("prompt", [1, 2])
        self.asked = asked

    def responses(self, sizes: Sequence[int], have: Sequence[int] = ()) -> list[TokenChunk]:
        """All responses of a stream whose client has the first ids already."""
        request = GenerationRequest(
            np.array([*self.prompt, *have], dtype=np.int32),
            SamplingParams(BUDGET - len(have)),
            streaming=True,
            num_resumed_ids=len(have),
            **self.asked,
        )
        watch = open_stop_watch(request, self.table)
        stream = DecoderStream(1, request, NO_SINK, watch, table=self.table)
        start, turn, made = len(have), 0, []
        while stream.outcome is None:
            size = sizes[turn % len(sizes)]
            new, start, turn = self.ids[start : start + size], start + size, turn + 1
            if stream.receive(new):
                stream.outcome = FinishReason.STOP
            elif start >= len(self.ids):
                stream.outcome = FinishReason.STOP if stream.flush() else FinishReason.LENGTH
            if stream.has_response:
                chunk: Any = stream.next_response().chunk  # the sink may be the one that packs it
                made.append(unpack(pack(chunk) if isinstance(chunk, TokenChunk) else chunk))
        return made

    def text(self, responses: Sequence[TokenChunk]) -> str:
        """What a client puts together."""
        return "".join(decode_chunk(self.table, chunk) for chunk in responses)

    def check_every_cut(self, sizes: Sequence[int]) -> None:
        """Cut behind each response, and once more in the rest."""
        whole = self.responses(sizes)
        expected = (self.text(whole), *_end(whole))
        for cut in range(1, len(whole)):
            have = [token for chunk in whole[:cut] for token in chunk.output_ids]
            rest = self.responses(sizes, have)
            assert (self.text([*whole[:cut], *rest]), *_end(rest)) == expected
            if len(rest) > 1:
                have += rest[0].output_ids
                third = self.responses(sizes, have)
                joined = [*whole[:cut], rest[0], *third]
                assert (self.text(joined), *_end(third)) == expected

    def check_resumed(self, have: Sequence[int], text: str) -> None:
        """What an engine with this tokenizer says of these ids, and of the text that came of them.

        Raises RequestError.
        """
        ids = np.array([*self.prompt, *have], dtype=np.int32)
        request = GenerationRequest(
            ids, SamplingParams(9), streaming=True, num_resumed_ids=len(have)
        )
        digest = hashlib.sha256(text.encode()).hexdigest()
        check_resumed_text(request, self.table, {DIGEST_PARAMETER: digest})


def _end(responses: Sequence[TokenChunk]) -> tuple[int, int, FinishReason]:
    last = responses[-1]
    return last.num_input_tokens, last.num_output_tokens, last.finish_reason


@cache
def _kind(name: str) -> tuple[Tokenizer, dict[bool, TokenTable]]:
    path = sample_tokenizers.KINDS[name](Path(mkdtemp(prefix=f"tritonctl-{name}-")))
    tables = {skip: load_token_bytes(path, skip_special_tokens=skip) for skip in (True, False)}
    return Tokenizer.from_file(str(path)), tables


def _special(tokenizer: Tokenizer) -> list[int]:
    return [n for n, token in tokenizer.get_added_tokens_decoder().items() if token.special]


def _encoded(name: str, text: str) -> list[int]:
    ids: list[int] = _kind(name)[0].encode(text, add_special_tokens=False).ids
    return ids


each_kind = pytest.mark.parametrize("name", sample_tokenizers.KINDS)


@each_kind
@pytest.mark.parametrize("skip", [True, False])
@EXAMPLES
@given(text=texts, sizes=cuts, places=positions)
def test_every_cut_of_any_text(
    name: str, skip: bool, text: str, sizes: list[int], places: list[tuple[int, int]]
) -> None:
    """With runs of special tokens anywhere, also in front of the first text."""
    ids, special = _encoded(name, text), _special(_kind(name)[0])
    for place, count in places:
        run = [special[(place + n) % len(special)] for n in range(count)]
        where = place % (len(ids) + 1)
        ids[where:where] = run
    Script(_kind(name)[1][skip], ids).check_every_cut(sizes)


@each_kind
@EXAMPLES
@given(data=st.data(), sizes=cuts)
def test_every_cut_of_any_ids(name: str, data: st.DataObject, sizes: list[int]) -> None:
    """Ids that no tokenizer would make of their text: what a model may well generate."""
    tokenizer, tables = _kind(name)
    known = st.integers(min_value=0, max_value=max(tokenizer.get_vocab().values()))
    Script(tables[True], data.draw(st.lists(known, max_size=25))).check_every_cut(sizes)


@each_kind
def test_an_echoed_prompt_comes_once(name: str) -> None:
    """The prompt opens the text of the unbroken stream only."""
    prompt = _encoded(name, "the lazy dog 七")
    ids = _encoded(name, "jumps over 東京 and then")
    script = Script(_kind(name)[1][True], ids, prompt=prompt, echo_prompt=True)
    script.check_every_cut([1])
    whole = script.responses([1])
    assert [chunk.output_ids for chunk in whole] == [[token] for token in ids]
    assert script.responses([1], ids[:2])[0].token_ids == ids[2:3]


@each_kind
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("word", ["over", "y dog", "七千三", "e lazy dog, and t", "s", " "])
def test_stop_words_across_the_break(name: str, include: bool, word: str) -> None:
    """Found wherever the stream broke: ids that may begin one are not sent before they are not."""
    ids = _encoded(name, f"{PIECES[0]} {PIECES[2]}")
    table = _kind(name)[1][True]
    asked: dict[str, Any] = {"stop_words": (word.encode(),), "include_stop_word": include}
    for sizes in ([1], [3, 1]):
        Script(table, ids, **asked).check_every_cut(sizes)
    assert Script(table, ids, **asked).text(Script(table, ids, **asked).responses([1])) != ""


LIMITS = SequenceLimits(
    max_input_len=10, max_seq_len=16, kv_tokens=64, vocab_size=100, eos_token_ids=(2,)
)


def _read(resume_ids: list[int], **scalars: int) -> GenerationRequest:
    tensors: dict[str, NDArray[Any]] = {
        "input_ids": np.array([[5, 6, 7]], dtype=np.int32),
        "input_lengths": np.array([[3]], dtype=np.int32),
        "resume_ids": np.array([resume_ids], dtype=np.int32),
    }
    tensors |= {name: np.array([[value]]) for name, value in scalars.items()}
    return read_generation_request(tensors.get, LIMITS)


def test_the_budget_is_that_of_the_whole_answer() -> None:
    """The engine reads prompt and answer, and makes what is left; the prompt stays the prompt."""
    request = _read([8, 9], request_output_len=6, min_tokens=3)
    assert request.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert (request.num_input_tokens, request.num_resumed_ids) == (3, 2)
    assert (request.sampling.max_tokens, request.sampling.min_tokens) == (4, 1)
    assert _read([8] * 5).sampling.max_tokens == 16 - 3 - 5
    assert _read([8] * 5, min_tokens=2).sampling.min_tokens == 0
    assert _read([]).num_resumed_ids == 0


@pytest.mark.parametrize(
    ("ids", "max_tokens", "problem"),
    [
        ([8, 100], 6, "resume_ids has 100, expected token ids from 0 to 99"),
        ([8, -1], 6, "resume_ids has -1"),
        ([8] * 3, 2, "resume_ids has 3 ids, but max_tokens is 2"),
        ([8] * 8, 10, r"the prompt and resume_ids have 11 tokens together, the limit is 10"),
    ],
)
def test_what_cannot_be_continued_is_refused(ids: list[int], max_tokens: int, problem: str) -> None:
    """By the name of the tensor, before an engine sees it."""
    with pytest.raises(RequestError, match=problem):
        _read(ids, request_output_len=max_tokens)


def _run(request: GenerationRequest) -> tuple[RecordingSink, ScriptedEngine]:
    engine, sink = ScriptedEngine(), RecordingSink()
    loop = DecoderLoop(engine, capacity=2)
    loop.start()
    try:
        loop.submit(request, sink)
        assert sink.done.wait(PATIENCE)
    finally:
        assert loop.close(PATIENCE)
    return sink, engine


def test_counters_go_on_in_the_loop() -> None:
    """Output tokens from where the first stream stood; the engine makes the rest only."""
    sink, _ = _run(_read([8, 9], request_output_len=6, streaming=1))
    assert len(sink.ids) == 4
    assert [chunk.num_input_tokens for chunk in sink.chunks] == [3] * len(sink.chunks)
    assert sink.chunks[0].num_output_tokens == 2 + len(sink.chunks[0].token_ids)
    assert sink.chunks[-1].num_output_tokens == 6


def test_broken_behind_the_last_id() -> None:
    """Only the end was missing: told without the engine."""
    sink, engine = _run(_read([8] * 6, request_output_len=6, streaming=1))
    (chunk,) = sink.chunks
    assert (chunk.token_ids, chunk.num_output_tokens) == ([], 6)
    assert (chunk.last, chunk.finish_reason) == (True, FinishReason.LENGTH)
    assert engine.steps == 0


def test_more_ids_than_slots() -> None:
    """A long answer that broke off, and long responses."""
    ids = _encoded("byte_level", " ".join(PIECES) * 3)
    assert len(ids) > 4 * SLOTS
    Script(_kind("byte_level")[1][True], ids).check_every_cut([3 * SLOTS])


@each_kind
@pytest.mark.parametrize("skip", [True, False])
@EXAMPLES
@given(text=texts, sizes=cuts)
def test_ids_and_text_of_one_release_belong_together(
    name: str, skip: bool, text: str, sizes: list[int]
) -> None:
    """Behind each response, half a character withheld or not."""
    script = Script(_kind(name)[1][skip], _encoded(name, text))
    have: list[int] = []
    read = ""
    for chunk in script.responses(sizes)[:-1]:
        have += chunk.output_ids
        read += decode_chunk(script.table, chunk)
        script.check_resumed(have, read)


def test_ids_of_another_tokenizer_are_not_continued() -> None:
    """Which has the same number of them, too: the text that the client has tells."""
    shipped, other = _kind("byte_level"), _kind("word_piece")
    words = "seven thousand three hundred"
    ids = shipped[0].encode(words, add_special_tokens=False).ids
    Script(shipped[1][True], ids).check_resumed(ids, words)
    with pytest.raises(RequestError, match=r"these \d+ ids to another text .* another tokenizer"):
        Script(other[1][True], ids).check_resumed(ids, words)
    request = GenerationRequest(
        np.array([1, *ids], dtype=np.int32),
        SamplingParams(9),
        streaming=True,
        num_resumed_ids=len(ids),
    )
    check_resumed_text(request, other[1][True], {})  # of a client that does not tell its text
