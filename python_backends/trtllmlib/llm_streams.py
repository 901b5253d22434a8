# SPDX-License-Identifier: Apache-2.0
"""A synchronous interface to the asynchronous LLM API: requests in, new ids out.

    stepping thread: start, wait, abort ─▶ reader thread with an event loop ─▶ LLM.generate_async
                                ▲                     │ one task per request: async for
                                └────── updates ◀─────┘

Results of the LLM API belong to their event loop (their queues are asyncio's), so every call on
them happens there. `wait_for_updates` sleeps until an update comes.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_STATS_SECONDS = 0.5
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class StreamUpdate:
    """The progress of a request since the previous update."""

    stream_id: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)  # one per id, if requested
    finish: str | None = None  # TensorRT-LLM's finish reason; None while the request runs
    error: Exception | None = None  # the request failed

    @property
    def is_finished(self) -> bool:
        """Whether this is the last update."""
        return self.finish is not None or self.error is not None


@dataclass(slots=True)
class _LiveStream:
    result: Any
    log_probs: bool
    seen: int = 0


class LlmStreams:
    """The requests in one LLM. Call `start`, `wait_for_updates` and `abort` from one thread."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._updates_lock = threading.Condition()
        self._updates: dict[int, StreamUpdate] = {}
        self._live: dict[int, _LiveStream] = {}  # used by the reader thread only
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching_stats = self._closing = False
        self._kv_cache: Mapping[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._reader = threading.Thread(target=self._loop.run_forever, name="reader", daemon=True)
        self._reader.start()

    def start(self, stream_id: int, arguments: Mapping[str, Any], *, log_probs: bool) -> None:
        """Pass a request to LLM.generate_async; raises its exceptions."""
        self._run_in_loop(lambda: self._start(stream_id, arguments, log_probs=log_probs))

    def wait_for_updates(self, timeout: float) -> list[StreamUpdate]:
        """Return the updates of all requests; waits up to `timeout` seconds for the first one."""
        with self._updates_lock:
            self._updates_lock.wait_for(lambda: self._updates, timeout)
            updates, self._updates = self._updates, {}
        return list(updates.values())

    def abort(self, stream_id: int) -> None:
        """Abort a request: frees its slot and drops its updates."""
        self._run_in_loop(lambda: self._abort(stream_id))
        with self._updates_lock:
            self._updates.pop(stream_id, None)

    def kv_cache(self) -> Mapping[str, int]:
        """Return the runtime's latest `kvCacheStats`; empty at first. Thread-safe."""
        return self._kv_cache

    @property
    def is_idle(self) -> bool:
        """Whether no request runs. Thread-safe."""
        return not self._live

    def close(self) -> None:
        """Abort all requests and shut the LLM down; otherwise its processes stay."""
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        finally:
            self._llm.shutdown()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._reader.join()
            self._loop.close()

    # --- reader thread ----------------------------------------------------------------------

    def _run_in_loop(self, call: Callable[[], None]) -> None:
        async def run() -> None:
            call()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _start(self, stream_id: int, arguments: Mapping[str, Any], *, log_probs: bool) -> None:
        result = self._llm.generate_async(**arguments)
        self._live[stream_id] = _LiveStream(result, log_probs)
        self._spawn(self._follow(stream_id, self._live[stream_id]))
        if not self._watching_stats:  # there are no statistics before the first request
            self._watching_stats = True
            self._spawn(self._watch_stats())

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop holds only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, stream_id: int, live: _LiveStream) -> None:
        try:
            async for output in live.result:
                self._publish_output(stream_id, live, output.outputs[0])
            failure: Exception = RuntimeError("it ended without a finish reason")
        except Exception as error:
            failure = error
        self._publish(
            stream_id, live, StreamUpdate(stream_id, error=failure)
        )  # ignored if it has finished

    def _publish_output(self, stream_id: int, live: _LiveStream, completion: Any) -> None:
        ids = list(completion.token_ids[live.seen :])
        log_probs = _log_probs(completion, ids) if live.log_probs else []
        live.seen += len(ids)
        finish = completion.finish_reason
        if ids or finish:
            self._publish(stream_id, live, StreamUpdate(stream_id, ids, log_probs, finish))

    def _publish(self, stream_id: int, live: _LiveStream, update: StreamUpdate) -> None:
        if self._live.get(stream_id) is not live:  # aborted or finished
            return
        if update.is_finished:
            del self._live[stream_id]
        with self._updates_lock:
            pending = self._updates.setdefault(stream_id, StreamUpdate(stream_id))
            pending.token_ids += update.token_ids
            pending.log_probs += update.log_probs
            pending.finish, pending.error = update.finish, update.error
            self._updates_lock.notify()

    def _abort(self, stream_id: int) -> None:
        if live := self._live.pop(stream_id, None):
            live.result.abort()

    async def _stop(self) -> None:
        for stream_id in list(self._live):
            self._abort(stream_id)
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:  # with a limit: wait_for of Python 3.11 may swallow a cancellation
            await asyncio.wait(self._tasks, timeout=_STATS_SECONDS)

    async def _watch_stats(self) -> None:
        try:
            while not self._closing:
                async for record in self._llm.get_stats_async(timeout=_STATS_SECONDS):
                    self._kv_cache = record.get("kvCacheStats") or self._kv_cache
                # The generator ends at once when the runtime is idle.
                await asyncio.sleep(_STATS_SECONDS)
        except Exception:
            _LOG.exception("the statistics of the KV cache stop")


def _log_probs(completion: Any, ids: list[int]) -> list[float]:
    """Return the log probability of each new id; some versions list only those of new ids."""
    entries = completion.logprobs or []
    if len(entries) < len(ids):
        raise RuntimeError(f"{len(ids)} ids came with {len(entries)} log probabilities")
    latest = entries[len(entries) - len(ids) :]
    return [_log_prob(entry, token) for entry, token in zip(latest, ids, strict=True)]


def _log_prob(entry: Any, token: int) -> float:
    if not isinstance(entry, Mapping):
        return float(entry)
    if token not in entry:
        raise RuntimeError(f"id {token} came without its log probability")
    return float(entry[token].logprob)
