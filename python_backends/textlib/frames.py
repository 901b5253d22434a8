# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed messages over a socket, between a stub and its child process."""

import socket
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")


def write_frame(peer: socket.socket, content: bytes) -> None:
    """Send one frame; raises OSError, never a signal, if the peer has hung up."""
    peer.sendall(encode_frame(content), socket.MSG_NOSIGNAL)


def encode_frame(content: bytes) -> bytes:
    """Return the bytes of a frame."""
    return _LENGTH.pack(len(content)) + content


class FrameReader:
    """Assembles frames from the pieces that a socket returns."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the frames that this piece completes."""
        self._received += piece
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            frame = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield frame


def read_frame(peer: socket.socket) -> bytes | None:
    """Read the next frame; None when the peer has hung up."""
    head = _read_exactly(peer, _LENGTH.size)
    return None if head is None else _read_exactly(peer, _LENGTH.unpack(head)[0])


def _read_exactly(peer: socket.socket, count: int) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        piece = peer.recv(count - len(received))
        if not piece:
            return None
        received += piece
    return bytes(received)
