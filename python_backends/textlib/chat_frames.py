# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed messages over a socket, between a tokenizer's stub and its chat worker."""

import socket
import struct

# CPU time that one conversation may take; an ordinary one takes a ten-thousandth of it.
CPU_SECONDS = 0.5
OK = b"\0"
FAILED = b"\1"
_LENGTH = struct.Struct("<I")


def write_frame(peer: socket.socket, content: bytes) -> None:
    """Send one frame; a peer that is gone raises OSError and never a signal."""
    peer.sendall(_LENGTH.pack(len(content)) + content, socket.MSG_NOSIGNAL)


def read_frame(peer: socket.socket) -> bytes | None:
    """The next frame, None when the peer has hung up."""
    head = _exactly(peer, _LENGTH.size)
    return None if head is None else _exactly(peer, _LENGTH.unpack(head)[0])


def _exactly(peer: socket.socket, count: int) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        piece = peer.recv(count - len(received))
        if not piece:
            return None
        received += piece
    return bytes(received)
