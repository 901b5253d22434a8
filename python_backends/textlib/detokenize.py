# SPDX-License-Identifier: Apache-2.0
"""Stateless decoding of streamed token ids: the pieces of a stream join to the exact text.

A chunk alone cannot be decoded: a character can be spread over several ids, and a token's text can
depend on being the first or the last. The chunk therefore carries the last 7 ids before it *that
have text* (`TokenBytes.has_text`): special tokens that are skipped take no place in the window, so
any number of them may stand anywhere. Why that is enough, for every decoder that is not refused:

* Text. Call the ids with text t1..tn. All supported decoders map each to bytes by a table, except
  that t1 may use `head` and tn `tail`; the text is the UTF-8 of the joined bytes (decoder_rules).
* First. t1 is in a chunk if and only if no id with text came before: its window is empty.
* UTF-8. A chunk emits the complete characters of (withheld bytes + its own bytes) and withholds an
  incomplete one. At most 3 bytes can be withheld, every id with bytes has at least one, and UTF-8
  is self-synchronising: the last 3 ids tell which bytes those are, whatever came before. So the
  pieces cut one byte string at places that do not matter to the decoder, malformed bytes included.
* Last. Where `tail` exists, a chunk withholds the end of its last token from the first byte in
  which `tail` and `data` differ; the next chunk with text sends it as `data`, the last chunk as
  `tail`. It needs the one id before: the window's last. Nothing sent is ever taken back.

3 ids would do; 7 leave room for an engine that puts every id into the window, with up to 4 special
tokens inside a character. Nothing is remembered between chunks: any instance can decode any chunk,
and an abandoned stream leaves nothing behind.

The one difference to `tokenizer.decode` is malformed text of byte-fallback tokenizers: the library
replaces a whole run of byte tokens if any of it is bad, which no stream can foresee.
"""

import codecs
from collections.abc import Sequence

from textlib.token_bytes import TokenBytes
from textlib.token_chunk import WINDOW, TokenChunk


def decode_chunk(table: TokenBytes, chunk: TokenChunk) -> str:
    """The text that this chunk adds to its stream.

    A trailing incomplete character is withheld until a later chunk completes it, or replaced by
    U+FFFD in the last one; the chunk's `cut` bytes are left out. Malformed bytes become U+FFFD,
    one per maximal ill-formed subpart (the practice of the Unicode standard, section 3.9);
    unknown ids decode to nothing. Never raises.
    """
    window = _with_text(table, chunk.window)
    new = _with_text(table, chunk.token_ids)
    if table.tail is None:
        pieces = [table.data[token] for token in new]
        if new and not _has_begun(chunk, window):
            pieces[0] = table.head[new[0]]
        added = b"".join(pieces)
    else:
        added = _up_to_tail(table, table.tail, window, new, last=chunk.last)
    added = added[: max(0, len(added) - chunk.cut)]
    carry = _unfinished_tail(b"".join([table.data[token] for token in window]))
    return codecs.utf_8_decode(carry + added, "replace", chunk.last)[0]


def _with_text(table: TokenBytes, token_ids: Sequence[int]) -> list[int]:
    opens, size = table.opens, len(table.opens)
    return [token for token in token_ids if 0 <= token < size and opens[token]]


def _has_begun(chunk: TokenChunk, window: Sequence[int]) -> bool:
    """Whether an id with text came before; a window full of others leaves it open, then yes."""
    return bool(window) or chunk.position > len(chunk.window) == WINDOW


def _unfinished_tail(data: bytes) -> bytes:
    """The incomplete UTF-8 prefix (at most 3 bytes) at the end of `data`."""
    if not data or data[-1] < 0x80:  # noqa: PLR2004 - below 0x80 a byte is a whole character
        return b""
    return data[codecs.utf_8_decode(data, "replace", False)[1] :]


def _up_to_tail(
    table: TokenBytes, tail: Sequence[bytes], window: list[int], new: list[int], *, last: bool
) -> bytes:
    """The bytes of this chunk where the stream's last token may differ."""

    def certain(token: int) -> bytes:
        return _common_start(table.data[token], tail[token])

    owed = window[-1] if window else None
    if not new:
        return tail[owed][len(certain(owed)) :] if last and owed is not None else b""
    begin = b"" if owed is None else table.data[owed][len(certain(owed)) :]
    end = tail[new[-1]] if last else certain(new[-1])
    return begin + b"".join([table.data[token] for token in new[:-1]]) + end


def _common_start(one: bytes, other: bytes) -> bytes:
    differing = (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return one[: next(differing, min(len(one), len(other)))]
