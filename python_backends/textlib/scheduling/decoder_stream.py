# SPDX-License-Identifier: Apache-2.0
"""The state of one request in the decoder loop: generated ids, sent ids, outcome."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from textlib.errors import (
    EngineFailedError,
    RequestCancelledError,
    RequestError,
    TextPathError,
)
from textlib.tokens.stop_words import StopWatch
from textlib.tokens.token_bytes import TextReader, TokenChain, TokenTable
from textlib.tokens.token_chunk import WINDOW, FinishReason, TokenChunk
from textlib.triton.request_tensors import GenerationRequest

_LOG = logging.getLogger(__name__)


class ResponseSink(Protocol):
    """Receives the responses of one request. Called from the sender thread only."""

    def send(self, chunk: TokenChunk) -> None:
        """Send one chunk, with the FINAL flag if it is the last."""

    def fail(self, error: TextPathError) -> None:
        """Send an error with the FINAL flag."""

    def is_cancelled(self) -> bool:
        """Whether the client cancelled; may cost a round trip to the server."""


@dataclass(frozen=True, slots=True)
class OutgoingResponse:
    """The next response of a stream: a chunk or an error, never both."""

    chunk: TokenChunk | None
    error: TextPathError | None
    final: bool


@dataclass(slots=True, eq=False)
class DecoderStream:
    """State of one request; the loop's lock guards every access."""

    stream_id: int
    request: GenerationRequest
    sink: ResponseSink
    watch: StopWatch | None = None  # holds back ids that may become a stop word
    table: TokenTable | None = None  # decodes ids
    pending: list[int] = field(default_factory=list)  # generated, not sent
    window: list[int] = field(default_factory=list)  # ids that the detokenizer sees again
    # Set once, by the first end; the loop drops later progress of the engine.
    outcome: FinishReason | TextPathError | None = None
    queued: bool = False  # in the send queue
    finished: bool = False  # the final response is sent
    receipt_page: int = 0  # key of the page for acknowledgements, or 0
    submitted_at: float = 0.0
    last_response_at: float = 0.0  # the submission before the first response
    timed: bool = True  # observe its times in the metrics
    responses: int = 0
    sent_ids: int = 0
    seen_ids: int = -1  # generated ids at the last stall check
    last_progress_at: float = 0.0
    stalled: bool = False  # counted as stalled
    echo: list[int] = field(default_factory=list)  # prompt ids to send first
    tail: list[int] = field(default_factory=list)  # held to the end; `cut` bytes are not emitted
    cut: int = 0
    position: int = 0
    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0
    reader: TextReader | None = None  # decodes the stream if the decoder is a chain

    def __post_init__(self) -> None:
        """Set up the echo of the prompt, or the position after the resumed ids."""
        preceding_ids = self.request.preceding_text_ids
        if isinstance(self.table, TokenChain):
            self.reader = self.table.reader()
        if not self.request.num_resumed_ids:
            self.echo = preceding_ids
            return
        self.sent_ids = self.request.num_resumed_ids
        self.position = len(preceding_ids)
        self.window = self._window_ids(preceding_ids)
        self._decode(preceding_ids)

    def receive(self, token_ids: Sequence[int], log_probs: Sequence[float] = ()) -> bool:
        """Add generated ids; True if they complete a stop word."""
        self.log_probs.extend(log_probs)
        if self.watch is None:
            self.pending.extend(token_ids)
            return False
        released = self.watch.feed(token_ids)
        self.pending.extend(released.token_ids)
        self.tail.extend(released.tail)
        self.cut = released.cut
        return released.matched

    def is_cancelled(self) -> bool:
        """Whether the server reports that the client cancelled."""
        try:
            return self.sink.is_cancelled()
        except Exception:
            _LOG.exception("stream %d: cannot poll for cancellation", self.stream_id)
            return False

    def flush(self) -> bool:
        """Release the held ids at the end of the stream; True if they end in a stop word."""
        if self.watch is not None:
            released = self.watch.flush()
            self.pending.extend(released.token_ids)
            self.tail.extend(released.tail)
            self.cut = released.cut
            return released.matched
        return False

    @property
    def has_response(self) -> bool:
        """Whether the stream has something to send now."""
        return self.outcome is not None or (self.request.streaming and bool(self.pending))

    @property
    def outcome_text(self) -> str:
        """The outcome for the metrics: stop, length, cancelled or error."""
        if isinstance(self.outcome, RequestCancelledError):
            return "cancelled"
        return self.outcome.text if isinstance(self.outcome, FinishReason) else "error"

    def next_response(self) -> OutgoingResponse:
        """Return everything pending as one response. Call this only if `has_response`."""
        try:
            return self._next_response()
        except Exception as error:
            self.outcome = decoding_error(error)
            return OutgoingResponse(None, self.outcome, final=True)

    def _next_response(self) -> OutgoingResponse:
        if isinstance(self.outcome, TextPathError):
            return OutgoingResponse(None, self.outcome, final=True)
        final = self.outcome is not None
        ids, self.pending = self.pending, []
        if final:
            ids += self.tail
        log_probs, self.log_probs = self.log_probs[: len(ids)], self.log_probs[len(ids) :]
        self.cum_log_prob += sum(log_probs)
        self.sent_ids += len(ids)
        return OutgoingResponse(self._build_chunk(ids, log_probs, final), None, final=final)

    @property
    def _finish_reason(self) -> FinishReason:
        return self.outcome if isinstance(self.outcome, FinishReason) else FinishReason.NONE

    def _build_chunk(self, ids: list[int], log_probs: list[float], final: bool) -> TokenChunk:
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
            text=self._decode(text_ids, final=final),
        )
        self.responses += 1
        self.position += len(text_ids)
        self.window = self._window_ids([*self.window, *text_ids])
        return chunk

    def _window_ids(self, ids: Sequence[int]) -> list[int]:
        if self.table is not None:
            ids = list(filter(self.table.has_text, ids))
        return list(ids[-WINDOW:])

    def _decode(self, ids: Sequence[int], *, final: bool = False) -> bytes | None:
        if self.reader is None:
            return None
        text = b"".join([self.reader.feed(token) for token in ids])
        if final:
            text += self.reader.finish()
            text = text[: max(0, len(text) - self.cut)]
        return text


def decoding_error(error: Exception) -> EngineFailedError:
    """Return the error of a stream whose ids the library cannot decode."""
    return EngineFailedError(f"the generated tokens cannot be decoded: {error}")


def open_stop_watch(request: GenerationRequest, table: TokenTable | None) -> StopWatch | None:
    """Open the watch of a request with stop words; raises RequestError without a table."""
    if not request.stop_words:
        return None
    if table is None:
        raise RequestError("stop_words: this engine has no tokenizer to find them with.")
    return StopWatch(
        request.stop_words,
        table,
        include_stop_word=request.include_stop_word,
        # Ids sent before an interruption cannot start a stop word: such ids were held back.
        preceding_ids=request.preceding_text_ids,
    )
