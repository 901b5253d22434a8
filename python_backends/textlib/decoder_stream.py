# SPDX-License-Identifier: Apache-2.0
"""One request inside the decoder loop: what it has made, what it has sent, how it ended."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from textlib.errors import RequestCancelledError, RequestError, TextPathError
from textlib.request_tensors import GenerationRequest
from textlib.stop_words import StopWatch
from textlib.token_bytes import TextReader, TokenChain, TokenTable
from textlib.token_chunk import WINDOW, FinishReason, TokenChunk

_LOG = logging.getLogger(__name__)


class ResponseSink(Protocol):
    """Where the responses of one request go. Called from the sender thread only."""

    def send(self, chunk: TokenChunk) -> None:
        """Answer with one chunk, and with the FINAL flag if it is the last."""

    def fail(self, error: TextPathError) -> None:
        """Answer with an error and the FINAL flag."""

    def is_cancelled(self) -> bool:
        """Whether the client asked to stop; may cost a round trip to the server."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The next response of a stream: a chunk or an error, never both."""

    chunk: TokenChunk | None
    error: TextPathError | None
    final: bool


@dataclass(slots=True, eq=False)
class Stream:
    """State of one request. Every access is guarded by the loop's lock.

    pending: ids made but not sent. tail: ids held back to the end, because the last `cut` bytes
    of their text are not emitted. outcome: set once, by the first end that
    is reported; what the engine reports afterwards is dropped. queued: the sender has it on its
    list. watch: holds back ids that may become a stop word. echo: prompt ids to be sent first.
    table: what ids decode to; the window holds only ids that the detokenizer needs to see again,
    and where the decoder is a chain, `reader` makes the text. gone: it has had its final response.
    receipt_page: key of the page its responses are acknowledged on, or 0. began: when it was
    submitted. latest: the same or, later, when its latest response was taken. timed: its times are
    observed.
    """

    stream_id: int
    request: GenerationRequest
    sink: ResponseSink
    watch: StopWatch | None = None
    table: TokenTable | None = None
    pending: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    outcome: FinishReason | TextPathError | None = None
    queued: bool = False
    gone: bool = False
    receipt_page: int = 0
    began: float = 0.0
    latest: float = 0.0
    timed: bool = True
    responses: int = 0
    sent_ids: int = 0
    made: int = -1
    moved: float = 0.0
    stalled: bool = False
    echo: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    cut: int = 0
    position: int = 0
    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0
    reader: TextReader | None = None

    def __post_init__(self) -> None:
        """Start with the prompt if the client wants it back, and after the ids that it has."""
        earlier = self.request.earlier_text_ids
        if isinstance(self.table, TokenChain):
            self.reader = self.table.reader()
        if not self.request.resumed:
            self.echo = earlier
            return
        self.sent_ids = self.request.resumed
        self.position = len(earlier)
        self.window = self._seen_again(earlier)
        self._text(earlier)

    def receive(self, token_ids: Sequence[int], log_probs: Sequence[float] = ()) -> bool:
        """Take in what the engine made; True if that completed a stop word."""
        self.log_probs.extend(log_probs)
        if self.watch is None:
            self.pending.extend(token_ids)
            return False
        cleared = self.watch.feed(token_ids)
        self.pending.extend(cleared.token_ids)
        self.tail.extend(cleared.tail)
        self.cut = cleared.cut
        return cleared.matched

    def asks_to_end(self) -> bool:
        """Whether the client asked to stop, as far as the server tells."""
        try:
            return self.sink.is_cancelled()
        except Exception:
            _LOG.exception("stream %d: cannot ask for cancellation", self.stream_id)
            return False

    def let_go(self) -> bool:
        """Nothing more will come: the ids held back go; True if they end in a stop word."""
        if self.watch is not None:
            rest = self.watch.flush()
            self.pending.extend(rest.token_ids)
            self.tail.extend(rest.tail)
            self.cut = rest.cut
            return rest.matched
        return False

    @property
    def wants_sending(self) -> bool:
        """It has something to send now."""
        return self.outcome is not None or (self.request.streaming and bool(self.pending))

    @property
    def outcome_text(self) -> str:
        """stop, length, cancelled or error."""
        if isinstance(self.outcome, RequestCancelledError):
            return "cancelled"
        return self.outcome.text if isinstance(self.outcome, FinishReason) else "error"

    def take(self) -> Outgoing:
        """Everything that the stream has, as one response. Call it only if `wants_sending`."""
        if isinstance(self.outcome, TextPathError):
            return Outgoing(None, self.outcome, final=True)
        final = self.outcome is not None
        ids, self.pending = self.pending, []
        if final:
            ids += self.tail
        log_probs, self.log_probs = self.log_probs[: len(ids)], self.log_probs[len(ids) :]
        self.cum_log_prob += sum(log_probs)
        self.sent_ids += len(ids)
        return Outgoing(self._chunk(ids, log_probs, final), None, final=final)

    @property
    def _finish_reason(self) -> FinishReason:
        return self.outcome if isinstance(self.outcome, FinishReason) else FinishReason.NONE

    def _chunk(self, ids: list[int], log_probs: list[float], final: bool) -> TokenChunk:
        text_ids, self.echo = self.echo + ids, []
        chunk = TokenChunk(
            stream_id=self.stream_id,
            index=self.responses,
            last=final,
            finish_reason=self._finish_reason if final else FinishReason.NONE,
            num_input_tokens=self.request.num_input_tokens,
            num_output_tokens=self.sent_ids,
            window=self.window,
            token_ids=text_ids,
            position=self.position,
            cut=self.cut if final and self.reader is None else 0,
            log_probs=log_probs,
            cum_log_prob=self.cum_log_prob,
            receipt_page=self.receipt_page,
            text=self._text(text_ids, final=final),
        )
        self.responses += 1
        self.position += len(text_ids)
        self.window = self._seen_again([*self.window, *text_ids])
        return chunk

    def _seen_again(self, ids: Sequence[int]) -> list[int]:
        if self.table is not None:
            ids = list(filter(self.table.has_text, ids))
        return list(ids[-WINDOW:])

    def _text(self, ids: Sequence[int], *, final: bool = False) -> bytes | None:
        if self.reader is None:
            return None
        text = b"".join([self.reader.feed(token) for token in ids])
        if final:
            text += self.reader.finish()
            text = text[: max(0, len(text) - self.cut)]
        return text


def watch_for(request: GenerationRequest, table: TokenTable | None) -> StopWatch | None:
    """The watch of a request with stop words; raises RequestError without a table."""
    if not request.stop_words:
        return None
    if table is None:
        raise RequestError("stop_words: this engine has no tokenizer to find them with.")
    return StopWatch(
        request.stop_words,
        table,
        include=request.include_stop_word,
        # What was sent before a break cannot begin a stop word: such ids were held back.
        earlier=request.earlier_text_ids,
    )
