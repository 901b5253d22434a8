# SPDX-License-Identifier: Apache-2.0
"""Stop words on decoded text: found across tokens, never partly emitted, exact to the byte."""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textlib.errors import RequestError
from textlib.scheduling.decoder_loop import DecoderLoop
from textlib.scheduling.decoder_stream import DecoderStream, open_stop_watch
from textlib.tokens.detokenize import decode_chunk
from textlib.tokens.stop_words import MAX_WORD_BYTES, MAX_WORDS, StopWatch, check_stop_words
from textlib.tokens.token_bytes import TokenBytes, TokenTable, load_token_bytes
from textlib.tokens.token_chunk import SLOTS, FinishReason, TokenChunk
from textlib.triton.request_tensors import GenerationRequest
from textlib.triton.sampling import SamplingParams
from tokenizers import Tokenizer

from tests.examples import examples

from .test_decoder_loop import PATIENCE, RecordingSink, ScriptedEngine

STREAMS = 300
BYTES = TokenBytes([bytes([n]) for n in range(256)], [bytes([n]) for n in range(256)], [True] * 256)
LETTERS = "ab 七千👩‍👧é"


class _NoSink:
    def send(self, chunk: TokenChunk) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def is_cancelled(self) -> bool:
        return False


def request(
    words: list[str], *, include: bool = False, streaming: bool = True, echo: bool = False
) -> GenerationRequest:
    """A request with stop words whose prompt is "?!"."""
    return GenerationRequest(
        np.array([63, 33], dtype=np.int32),
        SamplingParams(max_tokens=1000),
        streaming,
        stop_words=tuple(word.encode() for word in words),
        include_stop_word=include,
        echo_prompt=echo,
    )


def pieces(
    table: TokenTable, asked: GenerationRequest, steps: list[list[int]], pace: int = 1
) -> tuple[list[str], DecoderStream]:
    """What a client gets: one response after every `pace` steps, as the sender would send them."""
    stream = DecoderStream(1, asked, _NoSink(), open_stop_watch(asked, table), table)
    texts: list[str] = []

    def send() -> None:
        while stream.has_response:
            outgoing = stream.next_response()
            assert outgoing.chunk is not None
            texts.append(decode_chunk(table, outgoing.chunk))
            if outgoing.final:
                return

    for number, ids in enumerate(steps, start=1):
        if stream.receive(ids):
            stream.outcome = FinishReason.STOP
            break
        if number % pace == 0:
            send()
    else:
        stream.outcome = FinishReason.STOP if stream.flush() else FinishReason.LENGTH
    send()
    return texts, stream


def expected(text: str, words: list[str], *, include: bool) -> str:
    """The text up to the word that is complete first; of several, the longest."""
    data = text.encode()
    found = [(data.find(w.encode()) + len(w.encode()), data.find(w.encode())) for w in words]
    ends = [(end, start) for end, start in found if start >= 0]
    if not ends:
        return text
    end, start = min(ends)
    return data[: end if include else start].decode()


def spelled(text: str) -> list[list[int]]:
    """One id per byte, one id per step."""
    return [[byte] for byte in text.encode()]


@pytest.mark.hypothesis  # which marks the tests by itself that it calls
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace", "bpe_suffix"])
def test_streams_end_in_front_of_the_first_word(kind: str, request: pytest.FixtureRequest) -> None:
    """Any text, any words, any grouping of ids, streamed or not, for three kinds of tokenizers."""
    path: Path = request.getfixturevalue(kind)
    table = load_token_bytes(path, skip_special_tokens=True)
    tokenizer = Tokenizer.from_file(str(path))

    @examples(STREAMS)
    @given(
        text=st.text(LETTERS, min_size=1, max_size=40),
        words=st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=4),
        sizes=st.lists(st.integers(1, 5), min_size=1),
        pace=st.integers(1, 30),
        include=st.booleans(),
        streaming=st.booleans(),
    )
    def check(
        text: str, words: list[str], sizes: list[int], pace: int, include: bool, streaming: bool
    ) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.decode(ids)
        steps: list[list[int]] = []
        position = 0
        while position < len(ids):
            size = sizes[len(steps) % len(sizes)]
            steps.append(ids[position : position + size])
            position += size
        asked = _asked(words, include=include, streaming=streaming)
        texts, stream = pieces(table, asked, steps, pace)
        right = expected(whole, words, include=include)
        assert "".join(texts) == right
        if not streaming:
            assert len(texts) == 1
        assert (stream.outcome is FinishReason.STOP) == any(word in whole for word in words)

    check()


_asked = request  # the fixture of that name hides it


def test_only_what_may_become_a_word_is_withheld() -> None:
    """Text that merely resembles a word comes as soon as it differs, and at the end."""
    texts, stream = pieces(BYTES, request(["hundred"]), spelled("a hundr hunch hun"))

    assert "".join(texts) == "a hundr hunch hun"
    assert stream.outcome is FinishReason.LENGTH
    assert texts[:3] == ["a", " ", "hundr "]
    assert texts[-1] == "hun"


def test_a_word_inside_one_token() -> None:
    """The token is cut: what is in front of the word is emitted, what follows is not."""
    table = TokenBytes([b"one", b" two three"], [b"one", b" two three"], [True, True])

    assert pieces(table, request([" t", "e"]), [[0], [1]])[0] == ["on"]
    assert "".join(pieces(table, request(["wo"]), [[0], [1]])[0]) == "one t"
    assert "".join(pieces(table, request(["wo"], include=True), [[0], [1]])[0]) == "one two"


@pytest.mark.parametrize("include", [False, True])
def test_a_word_longer_than_a_chunk(include: bool) -> None:
    """256 ids that became a stop word go in one response, however many slots it needs."""
    word = "九" * 85
    texts, stream = pieces(BYTES, request([word], include=include), spelled("1234 " + word))

    assert "".join(texts) == "1234 " + word * include
    assert stream.sent_ids == 5 + 255


def test_a_tail_never_splits_over_chunks() -> None:
    """A full response in front of the held ids: they go with it, in a larger one."""
    front = "x" * (SLOTS - 1)
    texts, _ = pieces(BYTES, request(["stop"]), spelled(front + "stop"), pace=100)

    assert texts == [front]


def test_the_echoed_prompt_is_not_searched() -> None:
    """It comes first and whole; stop words are looked for in the answer."""
    texts, stream = pieces(BYTES, request(["?", "!a"], echo=True), spelled("a b?"))

    assert "".join(texts) == "?!a b"
    assert stream.position == 6
    assert stream.sent_ids == 4


def test_of_two_words_at_one_place_the_longest_counts() -> None:
    """Neither of them may be partly visible."""
    assert "".join(pieces(BYTES, request(["cd", "bcd"]), spelled("abcde"))[0]) == "a"


def test_watching_is_cheap() -> None:
    """64 long words on a text that resembles them: well below a decoder's step."""
    words = [("a" * n + "b").encode() for n in range(192, 256)]
    watch = StopWatch(words, BYTES)
    started = time.thread_time()  # of the processor: the machine may be busy
    for _ in range(1000):
        watch.feed([97])

    assert (time.thread_time() - started) / 1000 < 0.002


def test_the_engine_stops_too() -> None:
    """Its slot is free after the word, long before max_tokens; one final response, "stop"."""
    engine = ScriptedEngine()
    loop = DecoderLoop(engine, capacity=4, table=BYTES)
    loop.start()
    asked = GenerationRequest(
        np.array([97], dtype=np.int32),
        SamplingParams(max_tokens=10**9),
        True,
        stop_words=(b"klm",),
    )
    sink, other = RecordingSink(), RecordingSink()
    stream_id = loop.submit(asked, sink)
    loop.submit(GenerationRequest(asked.token_ids, SamplingParams(max_tokens=60), True), other)
    assert sink.done.wait(PATIENCE)
    assert other.done.wait(PATIENCE)
    assert loop.close(PATIENCE)

    assert "".join(decode_chunk(BYTES, chunk) for chunk in sink.chunks) == "abcdefghij"
    assert sink.chunks[-1].finish_reason is FinishReason.STOP
    assert sink.chunks[-1].num_output_tokens == 13
    assert sink.finals == 1
    assert stream_id in engine.cancelled
    assert len(other.ids) == 60


def test_an_engine_without_a_tokenizer_refuses_stop_words() -> None:
    """Never ignored."""
    loop = DecoderLoop(ScriptedEngine(), capacity=1)

    with pytest.raises(RequestError, match="stop_words"):
        loop.submit(request(["x"]), RecordingSink())
    assert loop.live_streams == 0


def test_as_many_and_as_long_as_may_be() -> None:
    """64 words of 256 bytes each; a word that is named twice counts once."""
    words = [f"{number:02}".encode().ljust(MAX_WORD_BYTES, b"x") for number in range(MAX_WORDS)]
    assert check_stop_words("stop_words", words) == tuple(words)
    assert check_stop_words("stop_words", [b"a", b"b", b"a"]) == (b"a", b"b")
    assert check_stop_words("stop_words", [b""]) == check_stop_words("stop_words", []) == ()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([b"a"] * (MAX_WORDS + 1), "stop_words has 65 words, expected at most 64"),
        ([b"a", b"x" * (MAX_WORD_BYTES + 1)], r"stop_words\[1\] has 257 bytes, expected at most"),
        (["七".encode() * 86], r"stop_words\[0\] has 258 bytes"),
        ([b"a", b""], r"stop_words\[1\] is empty"),
        ([b"", b""], r"stop_words\[0\] is empty"),
        ([b"a\xff"], r"stop_words\[0\] is not UTF-8: .* at byte 1"),
    ],
)
def test_words_that_cannot_be(words: list[bytes], problem: str) -> None:
    """By name, element and limit."""
    with pytest.raises(RequestError, match=problem):
        check_stop_words("stop_words", words)


# Ids that open a text otherwise than they go on with it; 1 is skipped.
TWO_WAYS = TokenBytes(data=[b" a", b""], first_data=[b"a", b""], is_visible=[True, False])


@pytest.mark.parametrize(
    ("ids", "matches"),
    [
        ([0, 0], [False, True]),  # "a a"
        ([1, 0, 0], [False, False, True]),  # a skipped id opens nothing
        ([1, 1, 0], [False, False, False]),
        ([7, -1, 0, 0], [False, False, False, True]),  # nor does one that the table lacks
    ],
)
def test_the_first_id_with_text_opens_it(ids: list[int], matches: list[bool]) -> None:
    """The word " a" is not in "a", whatever came before that has no text."""
    watch = StopWatch([b" a"], TWO_WAYS)
    assert [watch.feed([token]).matched for token in ids] == matches


@pytest.mark.parametrize(("earlier", "matched"), [([], False), ([1], False), ([0], True)])
def test_what_was_sent_before_a_break_has_opened_it(earlier: list[int], matched: bool) -> None:
    """Only if any of it has text."""
    assert StopWatch([b" a"], TWO_WAYS, preceding_ids=earlier).feed([0]).matched is matched
