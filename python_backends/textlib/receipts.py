# SPDX-License-Identifier: Apache-2.0
"""How an engine inside an ensemble learns that its client went away.

Triton 2.51 tells a step of an ensemble nothing when the client cancels or vanishes, but it stops
calling the steps behind it. So the detokenizer notes each response that reaches it on a page of
shared memory, and silence on it means departure to the engine.

The page is a file of unsigned 64-bit words in /dev/shm:

    0     layout version
    1     0 until a detokenizer reads the page, then 1 + its queue delay in milliseconds
    2, 3  batches that the detokenizer has begun, has done
    4..   one word per stream, at stream_id % PAGE_STREAMS: stream_id << 32 | responses received

Its name is a random key, which travels in every token_chunk, behind the prefix that the shared
memory of this Triton server has: several servers, models and instances never meet, and removing
the server's regions after a crash removes the page too.

*Silence* counts only while it means something: the detokenizer stands idle, or has received
responses that were sent after the missing one. A detokenizer that is slow, in a long batch or
behind by any backlog is neither, so a living client is not cut off. Nor does the time count that
the watching thread waited for a processor: the detokenizer then waits for one, too. Streams
without receipts on purpose (a direct call of the engine) are not watched at all.
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
# What a look at the page may add: a process that stood still sees no silence.
_LONGEST_TICK_SECONDS = 0.04
# The kernel's pressure stall information: of our container, else of the machine.
_PRESSURE = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))
_TOTAL_US = re.compile(rb"some .*total=(\d+)")
# What of such time is no silence: where processors are always short, it takes five times as long.
_STARVED_SHARE = 0.8
_QUEUE_DELAYS = 2
_LAYOUT = 1
_VERSION, _ATTACHED, _BEGUN, _DONE, _FIRST_STREAM = range(5)
_BYTES = 8 * (_FIRST_STREAM + PAGE_STREAMS)
_COUNT_BITS = 32
_MOST_PAGES = 16  # of one detokenizer; reloaded engines leave theirs behind
_UUID_CHARACTERS = 36
_DEFAULT_PREFIX = "triton_python_backend_shm_region_"
_LOG = logging.getLogger(__name__)


def server_prefix(command_line: Path = Path("/proc/self/cmdline")) -> str:
    """What the shared-memory names of this Triton server begin with.

    The stub's second argument is its own region: that prefix and a UUID.
    """
    try:
        region = command_line.read_bytes().split(b"\0")[2].decode()
    except (OSError, IndexError, UnicodeDecodeError):
        return _DEFAULT_PREFIX
    prefix = region[:-_UUID_CHARACTERS]
    return prefix if prefix and "/" not in prefix else _DEFAULT_PREFIX


class Page:
    """The mapped file. One aligned word is written at a time, so no reader sees half of one."""

    def __init__(self, path: Path, key: int, descriptor: int) -> None:
        self.path = path
        self.key = key
        self._map = mmap.mmap(descriptor, _BYTES)
        self.words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, prefix: str) -> "Page":
        """A new page; raises OSError."""
        key = 1 + secrets.randbelow(2**31 - 1)
        path = _path(prefix, key)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            # A sparse file would kill us with SIGBUS, later, when /dev/shm is full.
            os.posix_fallocate(descriptor, 0, _BYTES)
            page = cls(path, key, descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        page.words[_VERSION] = _LAYOUT
        return page

    @classmethod
    def open(cls, prefix: str, key: int) -> "Page | None":
        """The page of that key, None if it is missing or has another layout."""
        path = _path(prefix, key)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if os.fstat(descriptor).st_size != _BYTES:
                return None
            page = cls(path, key, descriptor)
        finally:
            os.close(descriptor)
        return page if page.words[_VERSION] == _LAYOUT else None

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self.words.release()
        self._map.close()

    def remove(self) -> None:
        """Remove the file and let go of the memory."""
        self.path.unlink(missing_ok=True)
        self.close()

    def note(self, stream_id: int, received: int) -> None:
        """Record that `received` responses of a stream have arrived."""
        self.words[_slot(stream_id)] = stream_id << _COUNT_BITS | received

    def received(self, stream_id: int) -> int | None:
        """Responses that have arrived; None if another stream has taken the word."""
        word = self.words[_slot(stream_id)]
        return word & (1 << _COUNT_BITS) - 1 if word >> _COUNT_BITS == stream_id else None


def _path(prefix: str, key: int) -> Path:
    return SHARED_MEMORY / f"{prefix}receipts_{key:08x}"


def _slot(stream_id: int) -> int:
    return _FIRST_STREAM + stream_id % PAGE_STREAMS


class ReceiptWriter:
    """The detokenizer's side: pages are found by the key in the chunks."""

    def __init__(self, prefix: str, *, queue_delay_ms: int = 0) -> None:
        self._prefix = prefix
        self._attached = 1 + queue_delay_ms
        self._pages: dict[int, Page] = {}

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around one batch of work: the engine sees that we are busy."""
        self._count(_BEGUN)
        try:
            yield
        finally:
            for page in self._pages.values():
                page.words[_DONE] = page.words[_BEGUN]

    def acknowledge(self, key: int, stream_id: int, index: int) -> None:
        """Response `index` of a stream has arrived; without effect if its page is gone."""
        if key <= 0 or stream_id <= 0 or index < 0:
            return
        page = self._pages.get(key) or self._open(key)
        if page is not None:
            page.note(stream_id, index + 1)

    def close(self) -> None:
        """Let go of every page."""
        while self._pages:
            self._pages.popitem()[1].close()

    def _count(self, word: int) -> None:
        for page in self._pages.values():
            page.words[word] += 1

    def _open(self, key: int) -> Page | None:
        page = Page.open(self._prefix, key)
        if page is None:
            return None
        while len(self._pages) >= _MOST_PAGES:
            self._pages.pop(next(iter(self._pages))).close()
        self._pages[key] = page
        page.words[_BEGUN] += 1  # we are in a batch, which this page has not seen begin
        page.words[_ATTACHED] = self._attached
        return page


@dataclass(slots=True)
class _Watched:
    """Responses under way as (index, ordinal among all responses), and how long none arrived."""

    sent: int = 0
    under_way: deque[tuple[int, int]] = field(default_factory=deque)
    silence: float = 0.0


def seconds_starved(pressure: Iterable[Path] = _PRESSURE) -> float:
    """How long some thread was ready to run and did not; 0 where the kernel does not count it."""
    for file in pressure:
        try:
            total = _TOTAL_US.match(file.read_bytes())
        except OSError:
            continue
        if total:
            return int(total[1]) / 1e6
    return 0.0


class ReceiptWatch:
    """The engine's side: which streams have fallen silent. Not thread-safe.

    `starved`: seconds during which threads have waited for a processor.
    """

    def __init__(
        self,
        page: Page,
        clock: Callable[[], float] = time.monotonic,
        starved: Callable[[], float] = seconds_starved,
    ) -> None:
        self._page = page
        self._clock = clock
        self._starved = starved
        self._watched: dict[int, _Watched] = {}
        self._sent = 0
        self._newest = 0  # ordinal of the latest response known to have arrived
        self._looked = self._now()
        self._activity = (0, 0)

    @property
    def key(self) -> int:
        """What the chunks carry."""
        return self._page.key

    def begin(self, stream_id: int) -> None:
        """Watch a stream."""
        self._watched[stream_id] = _Watched()
        self._page.note(stream_id, 0)

    def sending(self, stream_id: int, index: int) -> None:
        """Response `index` of a stream is on its way; without effect if it is not watched."""
        if watched := self._watched.get(stream_id):
            self._sent += 1
            watched.sent = index + 1
            watched.under_way.append((index, self._sent))

    def under_way(self, stream_id: int) -> int:
        """Responses of a stream that have not arrived; 0 without receipts."""
        watched = self._watched.get(stream_id)
        if watched is None or not self._page.words[_ATTACHED]:
            return 0
        received = self._page.received(stream_id)
        return 0 if received is None else watched.sent - received

    def end(self, stream_id: int) -> None:
        """Watch a stream no more."""
        self._watched.pop(stream_id, None)

    def departed(self) -> list[int]:
        """Streams whose client is gone. Ask every few hundredths of a second."""
        now = self._now()
        tick, self._looked = min(max(0.0, now - self._looked), _LONGEST_TICK_SECONDS), now
        idle = self._is_idle()
        attached = self._page.words[_ATTACHED]
        if not attached or not self._watched:
            return []
        limit = SILENCE_SECONDS + _QUEUE_DELAYS * (attached - 1) / 1000
        for stream_id, watched in self._watched.items():
            self._read(stream_id, watched)
        return [
            stream_id
            for stream_id, watched in self._watched.items()
            if self._listen(stream_id, watched, tick, idle=idle) >= limit
        ]

    def close(self) -> None:
        """Remove the page."""
        self._watched.clear()
        self._page.remove()

    def _now(self) -> float:
        return self._clock() - _STARVED_SHARE * self._starved()

    def _is_idle(self) -> bool:
        before, self._activity = self._activity, (self._page.words[_BEGUN], self._page.words[_DONE])
        begun, done = self._activity
        return begun == done and self._activity == before

    def _read(self, stream_id: int, watched: _Watched) -> None:
        received = self._page.received(stream_id) or 0
        while watched.under_way and watched.under_way[0][0] < received:
            self._newest = max(self._newest, watched.under_way.popleft()[1])
            watched.silence = 0.0

    def _listen(self, stream_id: int, watched: _Watched, tick: float, *, idle: bool) -> float:
        if not watched.under_way or self._page.received(stream_id) is None:
            return 0.0
        if idle or self._newest > watched.under_way[0][1]:
            watched.silence += tick
        return watched.silence


def open_watch() -> ReceiptWatch | None:
    """A watch on a new page, for an engine in Triton's stub; None, with a warning, without one."""
    prefix = server_prefix()
    try:
        return ReceiptWatch(Page.create(prefix))
    except OSError as error:
        _LOG.warning(
            "no shared memory for receipts (%s): streams of vanished clients run to their end",
            error,
        )
        return None
