# SPDX-License-Identifier: Apache-2.0
"""One request inside the decoder loop: what it has made, what it has sent, how it ended."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from textlib.errors import RequestCancelledError, RequestError, TextPathError
from textlib.request_tensors import GenerationRequest
from textlib.stop_words import StopWatch
from textlib.token_bytes import TokenBytes
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
    has_text: which ids the detokenizer needs to see again; the window holds no others. gone: it
    has had its final response. receipt_page: key of the page its responses are acknowledged on, or
    0. began: when it was submitted. latest: the same or, later, when its latest response was taken.
    """

    stream_id: int
    request: GenerationRequest
    sink: ResponseSink
    watch: StopWatch | None = None
    has_text: Callable[[int], bool] = lambda _: True
    pending: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    outcome: FinishReason | TextPathError | None = None
    queued: bool = False
    gone: bool = False
    receipt_page: int = 0
    began: float = 0.0
    latest: float = 0.0
    responses: int = 0
    sent_ids: int = 0
    echo: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    cut: int = 0
    position: int = 0
    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0

    def __post_init__(self) -> None:
        """Start with the prompt if the client wants it back, and after the ids that it has."""
        earlier = self.request.earlier_text_ids
        if not self.request.resumed:
            self.echo = earlier
            return
        self.sent_ids = self.request.resumed
        self.position = len(earlier)
        self.window = list(filter(self.has_text, earlier))[-WINDOW:]

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

    def let_go(self) -> None:
        """Nothing more will come: what may have become a stop word is ordinary text."""
        if self.watch is not None:
            self.pending.extend(self.watch.flush())

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
            cut=self.cut if final else 0,
            log_probs=log_probs,
            cum_log_prob=self.cum_log_prob,
            receipt_page=self.receipt_page,
        )
        self.responses += 1
        self.position += len(text_ids)
        self.window = [*self.window, *filter(self.has_text, text_ids)][-WINDOW:]
        return chunk


def watch_for(request: GenerationRequest, table: TokenBytes | None) -> StopWatch | None:
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
