# SPDX-License-Identifier: Apache-2.0
"""Stateless decoding of streamed token ids: the pieces of a stream join to the exact text.

A chunk alone cannot be decoded: a character can span several ids, and a token's text can depend on
being the first. The chunk therefore carries the last 7 previous ids *that have text* (`has_text`):
skipped special tokens take no place in the window, so any number of them may occur anywhere. This
is enough for every decoder with a table of bytes:

* Text. Call the ids with text t1..tn. The table maps each to bytes, except that t1 may use
  `first_data`; the text is the UTF-8 of the joined bytes (decoder_rules).
* First. A chunk contains t1 if and only if its window is empty.
* UTF-8. A chunk emits the complete characters of (withheld bytes + its bytes) and withholds an
  incomplete one. It withholds at most 3 bytes, every id with bytes has at least one, and UTF-8 is
  self-synchronising: the last 3 ids determine those bytes, whatever precedes them. So the pieces
  cut one byte string at places that do not matter to the decoder, malformed bytes included.

3 ids would do; 7 leave room for an engine that puts every id into the window, with up to 4 special
tokens inside a character. The detokenizer keeps no state between chunks: any instance can decode
any chunk, and an abandoned stream leaves nothing behind.

Decoders that need more than 7 ids are chains (decoder_chain). The engine, which has the whole
stream, decodes these, and the chunk carries the text.
"""

import codecs
from collections.abc import Sequence

from textlib.errors import RequestError
from textlib.tokens.token_bytes import TokenBytes, TokenTable
from textlib.tokens.token_chunk import WINDOW, TokenChunk


def decode_chunk(table: TokenTable, chunk: TokenChunk) -> str:
    """Return the text that this chunk adds to its stream.

    A trailing incomplete character is withheld until a later chunk completes it; in the last chunk
    U+FFFD replaces it. The chunk's `cut` bytes are dropped. Malformed bytes become U+FFFD, one per
    maximal ill-formed subpart (Unicode standard, section 3.9); unknown ids decode to nothing.
    Raises RequestError if the decoder is a chain and the chunk has no text.
    """
    if chunk.text is not None:
        return chunk.text.decode("utf-8", "replace")
    if not isinstance(table, TokenBytes):
        raise RequestError(
            "token_chunk has no text, and the decoder of this tokenizer.json needs the whole "
            "stream. The engine and the detokenizer probably have different versions; render the "
            "repository again."
        )
    window = _ids_with_text(table, chunk.window)
    new_ids = _ids_with_text(table, chunk.token_ids)
    pieces = [table.data[token] for token in new_ids]
    if new_ids and not _has_begun(chunk, window):
        pieces[0] = table.first_data[new_ids[0]]
    added = b"".join(pieces)
    added = added[: max(0, len(added) - chunk.cut)]
    carry = _unfinished_tail(b"".join([table.data[token] for token in window]))
    return codecs.utf_8_decode(carry + added, "replace", chunk.last)[0]


def text_so_far(table: TokenTable, token_ids: Sequence[int]) -> str:
    """Return the text that a client has received with the chunks of these ids."""
    reader = table.reader()
    data = b"".join([reader.feed(token) for token in token_ids])
    return codecs.utf_8_decode(data, "replace", False)[0]


def _ids_with_text(table: TokenBytes, token_ids: Sequence[int]) -> list[int]:
    is_visible, size = table.is_visible, len(table.is_visible)
    return [token for token in token_ids if 0 <= token < size and is_visible[token]]


def _has_begun(chunk: TokenChunk, window: Sequence[int]) -> bool:
    """Whether the stream already has an id with text; assumed if the window is full."""
    return bool(window) or chunk.position > len(chunk.window) == WINDOW


def _unfinished_tail(data: bytes) -> bytes:
    """The incomplete UTF-8 prefix (at most 3 bytes) at the end of `data`."""
    if not data or data[-1] < 0x80:  # noqa: PLR2004 - below 0x80 a byte is a whole character
        return b""
    return data[codecs.utf_8_decode(data, "replace", False)[1] :]
