# SPDX-License-Identifier: Apache-2.0
"""Stateless decoding of streamed token ids: the pieces of a stream join to the exact text.

A chunk alone cannot be decoded: a character can be spread over several ids, and a token's text can
depend on being the first. The chunk therefore carries the last 7 ids before it *that have text*
(`has_text`): special tokens that are skipped take no place in the window, so any number of them
may stand anywhere. Why that is enough for every decoder with a table of bytes:

* Text. Call the ids with text t1..tn. The table maps each to bytes, except that t1 may use `head`;
  the text is the UTF-8 of the joined bytes (decoder_rules).
* First. t1 is in a chunk if and only if no id with text came before: its window is empty.
* UTF-8. A chunk emits the complete characters of (withheld bytes + its own bytes) and withholds an
  incomplete one. At most 3 bytes can be withheld, every id with bytes has at least one, and UTF-8
  is self-synchronising: the last 3 ids tell which bytes those are, whatever came before. So the
  pieces cut one byte string at places that do not matter to the decoder, malformed bytes included.

3 ids would do; 7 leave room for an engine that puts every id into the window, with up to 4 special
tokens inside a character. Nothing is remembered between chunks: any instance can decode any chunk,
and an abandoned stream leaves nothing behind.

Decoders that need more than 7 ids are chains (decoder_chain). Their text is made where the whole
stream is, in the engine, and the chunk carries it.
"""

import codecs
from collections.abc import Sequence

from textlib.errors import RequestError
from textlib.token_bytes import TokenBytes, TokenTable
from textlib.token_chunk import WINDOW, TokenChunk


def decode_chunk(table: TokenTable, chunk: TokenChunk) -> str:
    """The text that this chunk adds to its stream.

    A trailing incomplete character is withheld until a later chunk completes it, or replaced by
    U+FFFD in the last one; the chunk's `cut` bytes are left out. Malformed bytes become U+FFFD,
    one per maximal ill-formed subpart (the practice of the Unicode standard, section 3.9);
    unknown ids decode to nothing. Raises RequestError for a chunk without the text of a chain.
    """
    if chunk.text is not None:
        return chunk.text.decode("utf-8", "replace")
    if not isinstance(table, TokenBytes):
        raise RequestError(
            "token_chunk has no text, and the decoder of this tokenizer.json needs the whole "
            "stream. Engine and detokenizer are probably of different versions; render the "
            "repository again."
        )
    window = _with_text(table, chunk.window)
    new = _with_text(table, chunk.token_ids)
    pieces = [table.data[token] for token in new]
    if new and not _has_begun(chunk, window):
        pieces[0] = table.head[new[0]]
    added = b"".join(pieces)
    added = added[: max(0, len(added) - chunk.cut)]
    carry = _unfinished_tail(b"".join([table.data[token] for token in window]))
    return codecs.utf_8_decode(carry + added, "replace", chunk.last)[0]


def text_so_far(table: TokenTable, token_ids: Sequence[int]) -> str:
    """What a client has read of a stream once it has had all chunks with these ids."""
    reader = table.reader()
    data = b"".join([reader.feed(token) for token in token_ids])
    return codecs.utf_8_decode(data, "replace", False)[0]


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
