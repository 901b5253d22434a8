# SPDX-License-Identifier: Apache-2.0
"""`token_chunk`: the INT32 tensor that an engine sends to the detokenizer with each response.

Layout, `HEADER + WINDOW + K` values:

    0 stream_id           unique among the live streams of one engine
    1 index               index of this response within its stream, from 0
    2 last                1 on the last response of the stream
    3 finish_reason       FinishReason; NONE until the last response
    4 num_input_tokens    length of the prompt in tokens
    5 num_output_tokens   ids sent so far, this chunk included
    6 n_new               number of filled slots, at most K
    7 position            ids of the text before this chunk, including an echoed prompt and, in a
                          resumed stream, the ids sent before the interruption
    8 cut                 bytes at the end of this chunk's text that are not emitted: a stop word
    9 n_log_probs         number of log probabilities after the slots; 0 unless requested
    10 cum_log_prob       FP32 bits: log probability of all ids sent so far
    11 receipt_page       page of the acknowledgement (scheduling/acknowledgements.py); 0: no page
    12 n_text             bytes of text after the log probabilities; -1: decode the ids
    13..19 window         the last 7 previous ids with text, padded with -1 on the left
    20..  token_ids       K slots, padded with -1 on the right
    ...   log_probs       FP32 bits, one per generated id of this chunk
    ...   text            UTF-8, 4 bytes a value, padded with zeros to K values

K is 16, so that streamed chunks have the same shape and Triton's dynamic batcher can batch them.
With more ids (a slow server, the single response of a request that does not stream, an echoed
prompt) K is the next power of two: few shapes, so Triton can batch these as well. Only this module
knows the layout.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from textlib.errors import RequestError

HEADER = 13
WINDOW = 7
SLOTS = 16
NO_TEXT = -1
PADDING = -1
_FIRST_ID = HEADER + WINDOW
_BOOLEANS = (0, 1)
_TEXT_BYTES = 4  # in one INT32


class FinishReason(IntEnum):
    """Why a stream ended; the public `finish_reason` tensor carries `text`."""

    NONE = 0
    STOP = 1
    LENGTH = 2

    @property
    def text(self) -> str:
        """Empty while the stream runs, then "stop" or "length"."""
        return "" if self is FinishReason.NONE else self.name.lower()


_REASONS = tuple(FinishReason)


@dataclass(slots=True)
class TokenChunk:
    """The unpacked form."""

    stream_id: int
    index: int
    last: bool
    finish_reason: FinishReason
    num_input_tokens: int
    num_output_tokens: int  # generated ids only
    window: Sequence[int]  # without padding
    token_ids: Sequence[int]  # without padding
    position: int = 0  # counts an echoed prompt too
    cut: int = 0
    log_probs: Sequence[float] = field(default_factory=list)
    cum_log_prob: float = 0.0
    receipt_page: int = 0
    text: bytes | None = None  # the chunk's text if the engine decodes, `cut` already applied

    @property
    def output_ids(self) -> Sequence[int]:
        """The generated ids of this chunk, without an echoed prompt."""
        return self.token_ids[max(0, len(self.token_ids) - self.num_output_tokens) :]


def slots_for(count: int) -> int:
    """Return K for a chunk of `count` ids."""
    return SLOTS if count <= SLOTS else 1 << (count - 1).bit_length()


def pack(chunk: TokenChunk) -> NDArray[np.int32]:
    """Lay out a chunk as one row of INT32.

    Only the last `WINDOW` ids of `chunk.window` are packed, so a caller may pass a longer history.
    """
    window = list(chunk.window)[-WINDOW:]
    new_ids = list(chunk.token_ids)
    values = [
        chunk.stream_id,
        chunk.index,
        int(chunk.last),
        int(chunk.finish_reason),
        chunk.num_input_tokens,
        chunk.num_output_tokens,
        len(new_ids),
        chunk.position,
        chunk.cut,
        len(chunk.log_probs),
        *(_bits([chunk.cum_log_prob]) if chunk.cum_log_prob else (0,)),
        chunk.receipt_page,
        NO_TEXT if chunk.text is None else len(chunk.text),
        *[PADDING] * (WINDOW - len(window)),
        *window,
        *new_ids,
        *[PADDING] * (slots_for(len(new_ids)) - len(new_ids)),
        *(_bits(chunk.log_probs) if chunk.log_probs else ()),
        *(() if chunk.text is None else _packed_text(chunk.text)),
    ]
    return np.array(values, dtype=np.int32)


def _packed_text(text: bytes) -> tuple[int, ...]:
    count = _text_slots(len(text))
    return struct.unpack(f"={count}i", text.ljust(_TEXT_BYTES * count, b"\0"))


def _text_slots(n_bytes: int) -> int:
    return 0 if n_bytes == NO_TEXT else slots_for(-(-n_bytes // _TEXT_BYTES))


def _bits(values: Sequence[float]) -> tuple[int, ...]:
    count = len(values)
    return struct.unpack(f"={count}i", struct.pack(f"={count}f", *values))


def _floats(bits: Sequence[int]) -> list[float]:
    count = len(bits)
    return list(struct.unpack(f"={count}f", struct.pack(f"={count}i", *bits)))


def unpack(values: NDArray[np.int32]) -> TokenChunk:
    """Read a one-dimensional INT32 tensor made by `pack`.

    Raises RequestError for a tensor that `pack` cannot have made: a client may call the detokenizer
    directly.
    """
    row: list[int] = values.tolist()
    if values.ndim != 1 or len(row) < _FIRST_ID + SLOTS:
        raise RequestError(
            f"token_chunk has shape {list(values.shape)}, expected one row of at least "
            f"{_FIRST_ID + SLOTS} values. Only an engine of this project produces it; "
            "call the ensemble instead of the detokenizer."
        )
    last, reason, count = row[2], row[3], row[6]
    if last not in _BOOLEANS or not 0 <= reason < len(_REASONS):
        raise RequestError(
            f"token_chunk has last={last} and finish_reason={reason}, expected last 0 or 1 and "
            f"finish_reason 0 to {len(_REASONS) - 1}. The engine and the detokenizer probably have "
            "different versions; render the repository again."
        )
    cut, position, n_log_probs, n_text = row[8], row[7], row[9], row[12]
    slots = len(row) - _FIRST_ID - n_log_probs - _text_slots(max(n_text, NO_TEXT))
    if min(cut, position, n_log_probs, n_text + 1) < 0 or slots < SLOTS or not 0 <= count <= slots:
        raise RequestError(
            f"token_chunk announces {count} ids in {slots} slots, {n_log_probs} log "
            f"probabilities, {n_text} bytes of text, position {position} and cut {cut}. The engine "
            "and the detokenizer probably have different versions; render the repository again."
        )
    text_start = _FIRST_ID + slots + n_log_probs
    return TokenChunk(
        stream_id=row[0],
        index=row[1],
        last=bool(last),
        finish_reason=_REASONS[reason],
        num_input_tokens=row[4],
        num_output_tokens=row[5],
        window=row[HEADER + row[HEADER:_FIRST_ID].count(PADDING) : _FIRST_ID],
        token_ids=row[_FIRST_ID : _FIRST_ID + count],
        position=position,
        cut=cut,
        log_probs=_floats(row[_FIRST_ID + slots : text_start]) if n_log_probs else [],
        cum_log_prob=_floats(row[10:11])[0] if row[10] else 0.0,
        receipt_page=row[11],
        text=None if n_text == NO_TEXT else values[text_start:].tobytes()[:n_text],
    )
