# SPDX-License-Identifier: Apache-2.0
"""Let an engine inside an ensemble detect that its client has left.

Triton 2.51 does not notify the steps of an ensemble when the client cancels or vanishes, but it
stops calling the later steps. So the detokenizer records each response that it receives on a page
of shared memory; if a stream's record stays silent, the engine concludes that the client left.

The page is a file of unsigned 64-bit words in /dev/shm:

    0     layout version
    1     0 until a detokenizer reads the page, then 1 + its queue delay in milliseconds
    2, 3  batches that the detokenizer has started, has finished
    4..   one word per stream, at stream_id % PAGE_STREAMS: stream_id << 32 | responses received

The file name is the prefix of this Triton server's shared memory plus a random key, which every
token_chunk carries. So servers, models and instances never share a page, and removing the server's
regions after a crash removes the page too.

Silence counts only while the detokenizer is idle, or has received responses that were sent after
the missing one. A slow detokenizer, one in a long batch or one with a backlog meets neither
condition, so a live client is never cut off. Time during which the watching thread waits for a
processor does not count either: the detokenizer then waits for one, too. Streams without receipts
(direct calls of the engine) are not watched.
"""

import logging
import mmap
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend puts its regions
PAGE_STREAMS = 16384
SILENCE_SECONDS = 0.25
# Maximum silence that one check can add, so that a suspended process does not count its pause.
_MAX_TICK_SECONDS = 0.04
# The kernel's pressure stall information of the container, else of the machine.
_PRESSURE = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))
_TOTAL_US = re.compile(rb"some .*total=(\d+)")
# Share of starved time that does not count: on a saturated machine detection takes 5 x as long.
_STARVED_SHARE = 0.8
_QUEUE_DELAYS = 2
_LAYOUT = 1
_VERSION, _ATTACHED, _STARTED, _FINISHED, _FIRST_STREAM = range(5)
_PAGE_BYTES = 8 * (_FIRST_STREAM + PAGE_STREAMS)
_COUNT_BITS = 32
_MAX_PAGES = 16  # per detokenizer; reloaded engines leave their pages behind
_UUID_CHARACTERS = 36
_DEFAULT_PREFIX = "triton_python_backend_shm_region_"
_LOG = logging.getLogger(__name__)


def server_prefix(command_line: Path = Path("/proc/self/cmdline")) -> str:
    """Return the prefix of this Triton server's shared-memory names.

    The stub's second argument is its region: the prefix and a UUID.
    """
    try:
        region = command_line.read_bytes().split(b"\0")[2].decode()
    except (OSError, IndexError, UnicodeDecodeError):
        return _DEFAULT_PREFIX
    prefix = region[:-_UUID_CHARACTERS]
    return prefix if prefix and "/" not in prefix else _DEFAULT_PREFIX


class ReceiptPage:
    """The mapped file. A write stores one aligned word, so a reader never sees half of one."""

    def __init__(self, path: Path, key: int, descriptor: int) -> None:
        self.path = path
        self.key = key
        self._map = mmap.mmap(descriptor, _PAGE_BYTES)
        self.words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, prefix: str) -> "ReceiptPage":
        """Create a page; raises OSError."""
        key = 1 + secrets.randbelow(2**31 - 1)
        path = _page_path(prefix, key)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            # Writing to a sparse file raises SIGBUS when /dev/shm is full.
            os.posix_fallocate(descriptor, 0, _PAGE_BYTES)
            page = cls(path, key, descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        page.words[_VERSION] = _LAYOUT
        return page

    @classmethod
    def open(cls, prefix: str, key: int) -> "ReceiptPage | None":
        """Open the page of a key; None if it is missing or has another layout."""
        path = _page_path(prefix, key)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if os.fstat(descriptor).st_size != _PAGE_BYTES:
                return None
            page = cls(path, key, descriptor)
        finally:
            os.close(descriptor)
        return page if page.words[_VERSION] == _LAYOUT else None

    def close(self) -> None:
        """Unmap the memory; the file stays."""
        self.words.release()
        self._map.close()

    def remove(self) -> None:
        """Remove the file and unmap the memory."""
        self.path.unlink(missing_ok=True)
        self.close()

    def record(self, stream_id: int, received: int) -> None:
        """Record that `received` responses of a stream have arrived."""
        self.words[_word_index(stream_id)] = stream_id << _COUNT_BITS | received

    def received_count(self, stream_id: int) -> int | None:
        """Return the arrived responses; None if another stream uses the word."""
        word = self.words[_word_index(stream_id)]
        return word & (1 << _COUNT_BITS) - 1 if word >> _COUNT_BITS == stream_id else None


def _page_path(prefix: str, key: int) -> Path:
    return SHARED_MEMORY / f"{prefix}receipts_{key:08x}"


def _word_index(stream_id: int) -> int:
    return _FIRST_STREAM + stream_id % PAGE_STREAMS


class ReceiptWriter:
    """The detokenizer's side: finds pages by the key in the chunks."""

    def __init__(self, prefix: str, *, queue_delay_ms: int = 0) -> None:
        self._prefix = prefix
        self._attached = 1 + queue_delay_ms
        self._pages: dict[int, ReceiptPage] = {}

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Mark one batch of work, so that the engine sees a busy detokenizer."""
        self._increment(_STARTED)
        try:
            yield
        finally:
            for page in self._pages.values():
                page.words[_FINISHED] = page.words[_STARTED]

    def acknowledge(self, key: int, stream_id: int, index: int) -> None:
        """Record that response `index` of a stream has arrived; no effect without its page."""
        if key <= 0 or stream_id <= 0 or index < 0:
            return
        page = self._pages.get(key) or self._open_page(key)
        if page is not None:
            page.record(stream_id, index + 1)

    def close(self) -> None:
        """Close every page."""
        while self._pages:
            self._pages.popitem()[1].close()

    def _increment(self, word: int) -> None:
        for page in self._pages.values():
            page.words[word] += 1

    def _open_page(self, key: int) -> ReceiptPage | None:
        page = ReceiptPage.open(self._prefix, key)
        if page is None:
            return None
        while len(self._pages) >= _MAX_PAGES:
            self._pages.pop(next(iter(self._pages))).close()
        self._pages[key] = page
        page.words[_STARTED] += 1  # the current batch started before this page was open
        page.words[_ATTACHED] = self._attached
        return page


@dataclass(slots=True)
class _WatchedStream:
    """A stream's unacknowledged responses."""

    sent: int = 0
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    silence: float = 0.0


def starvation_seconds(pressure_files: Iterable[Path] = _PRESSURE) -> float:
    """Return the total time that some thread waited for a processor; 0 if the kernel has none."""
    for file in pressure_files:
        try:
            total = _TOTAL_US.match(file.read_bytes())
        except OSError:
            continue
        if total:
            return int(total[1]) / 1e6
    return 0.0


class ReceiptWatch:
    """The engine's side: detects silent streams. Not thread-safe.

    starvation: returns the total seconds that threads have waited for a processor.
    """

    def __init__(
        self,
        page: ReceiptPage,
        clock: Callable[[], float] = time.monotonic,
        starvation: Callable[[], float] = starvation_seconds,
    ) -> None:
        self._page = page
        self._clock = clock
        self._starvation = starvation
        self._watched: dict[int, _WatchedStream] = {}
        self._sent = 0
        self._latest_arrival = 0  # ordinal of the latest response known to have arrived
        self._last_check = self._now()
        self._activity = (0, 0)

    @property
    def key(self) -> int:
        """The key that the chunks carry."""
        return self._page.key

    def watch(self, stream_id: int) -> None:
        """Watch a stream."""
        self._watched[stream_id] = _WatchedStream()
        self._page.record(stream_id, 0)

    def record_send(self, stream_id: int, index: int) -> None:
        """Record that response `index` of a stream is sent; no effect if it is not watched."""
        if watched := self._watched.get(stream_id):
            self._sent += 1
            watched.sent = index + 1
            watched.in_flight.append((index, self._sent))

    def in_flight(self, stream_id: int) -> int:
        """Return the number of responses that have not arrived; 0 without receipts."""
        watched = self._watched.get(stream_id)
        if watched is None or not self._page.words[_ATTACHED]:
            return 0
        received = self._page.received_count(stream_id)
        return 0 if received is None else watched.sent - received

    def unwatch(self, stream_id: int) -> None:
        """Stop watching a stream."""
        self._watched.pop(stream_id, None)

    def departed_streams(self) -> list[int]:
        """Return the streams whose client has left. Call this every few hundredths of a second."""
        now = self._now()
        tick, self._last_check = min(max(0.0, now - self._last_check), _MAX_TICK_SECONDS), now
        idle = self._is_idle()
        attached = self._page.words[_ATTACHED]
        if not attached or not self._watched:
            return []
        limit = SILENCE_SECONDS + _QUEUE_DELAYS * (attached - 1) / 1000
        for stream_id, watched in self._watched.items():
            self._read_receipts(stream_id, watched)
        return [
            stream_id
            for stream_id, watched in self._watched.items()
            if self._silence_seconds(stream_id, watched, tick, idle=idle) >= limit
        ]

    def close(self) -> None:
        """Remove the page."""
        self._watched.clear()
        self._page.remove()

    def _now(self) -> float:
        return self._clock() - _STARVED_SHARE * self._starvation()

    def _is_idle(self) -> bool:
        previous, self._activity = (
            self._activity,
            (self._page.words[_STARTED], self._page.words[_FINISHED]),
        )
        started, finished = self._activity
        return started == finished and self._activity == previous

    def _read_receipts(self, stream_id: int, watched: _WatchedStream) -> None:
        received = self._page.received_count(stream_id) or 0
        while watched.in_flight and watched.in_flight[0][0] < received:
            self._latest_arrival = max(self._latest_arrival, watched.in_flight.popleft()[1])
            watched.silence = 0.0

    def _silence_seconds(
        self, stream_id: int, watched: _WatchedStream, tick: float, *, idle: bool
    ) -> float:
        if not watched.in_flight or self._page.received_count(stream_id) is None:
            return 0.0
        if idle or self._latest_arrival > watched.in_flight[0][1]:
            watched.silence += tick
        return watched.silence


def open_watch() -> ReceiptWatch | None:
    """Open a watch on a new page in Triton's stub; None, with a warning, if that fails."""
    prefix = server_prefix()
    try:
        return ReceiptWatch(ReceiptPage.create(prefix))
    except OSError as error:
        _LOG.warning(
            "no shared memory for receipts (%s): streams of vanished clients run to their end",
            error,
        )
        return None
