# SPDX-License-Identifier: Apache-2.0
"""The asynchronous LLM API behind calls that wait: requests in, new ids out.

    stepping thread: start, take, abort ─▶ reader thread with an event loop ─▶ LLM.generate_async
                                ▲                     │ one task per request: async for
                                └── news, notified ◀──┘

Results of the LLM API belong to the event loop they were made in (their queues are asyncio's), so
every call on them happens there. `take` sleeps until news comes.
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
class News:
    """What a request has made since it was last asked about.

    log_probs: one per id where they were asked for. finish: TensorRT-LLM's word, None while it
    goes on. error: the request is over, without a finish.
    """

    stream_id: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish: str | None = None
    error: Exception | None = None

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.finish is not None or self.error is not None


@dataclass(slots=True)
class _Live:
    result: Any
    log_probs: bool
    seen: int = 0


class LlmStreams:
    """Everything that runs in one LLM. `start`, `take` and `abort` come from one thread."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._news_lock = threading.Condition()
        self._news: dict[int, News] = {}
        self._live: dict[int, _Live] = {}  # touched by the reader thread only
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching_stats = self._closing = False
        self._kv_cache: Mapping[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._reader = threading.Thread(target=self._loop.run_forever, name="reader", daemon=True)
        self._reader.start()

    def start(self, stream_id: int, arguments: Mapping[str, Any], *, log_probs: bool) -> None:
        """Hand a request to LLM.generate_async; raises what that raises."""
        self._in_loop(lambda: self._start(stream_id, arguments, log_probs=log_probs))

    def take(self, patience: float) -> list[News]:
        """The news of every request that has some; sleeps up to `patience` seconds for them."""
        with self._news_lock:
            self._news_lock.wait_for(lambda: self._news, patience)
            news, self._news = self._news, {}
        return list(news.values())

    def abort(self, stream_id: int) -> None:
        """End a request, if it is not over: its slot is freed, its news are dropped."""
        self._in_loop(lambda: self._abort(stream_id))
        with self._news_lock:
            self._news.pop(stream_id, None)

    def kv_cache(self) -> Mapping[str, int]:
        """The runtime's latest `kvCacheStats`; empty before the first. From any thread."""
        return self._kv_cache

    @property
    def idle(self) -> bool:
        """Nothing runs. From any thread."""
        return not self._live

    def close(self) -> None:
        """Abort what runs and shut the LLM down; otherwise its processes would stay."""
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        finally:
            self._llm.shutdown()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._reader.join()
            self._loop.close()

    # --- reader thread ----------------------------------------------------------------------

    def _in_loop(self, call: Callable[[], None]) -> None:
        async def run() -> None:
            call()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _start(self, stream_id: int, arguments: Mapping[str, Any], *, log_probs: bool) -> None:
        result = self._llm.generate_async(**arguments)
        self._live[stream_id] = _Live(result, log_probs)
        self._spawn(self._follow(stream_id, self._live[stream_id]))
        if not self._watching_stats:  # it has none before the first request
            self._watching_stats = True
            self._spawn(self._watch_stats())

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop alone would let go of it
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, stream_id: int, live: _Live) -> None:
        try:
            async for output in live.result:
                self._note(stream_id, live, output.outputs[0])
            silent: Exception = RuntimeError("it ended without a finish reason")
        except Exception as error:
            silent = error
        self._tell(stream_id, live, News(stream_id, error=silent))  # unless it is over by now

    def _note(self, stream_id: int, live: _Live, completion: Any) -> None:
        ids = list(completion.token_ids[live.seen :])
        log_probs = _log_probs(completion, ids) if live.log_probs else []
        live.seen += len(ids)
        finish = completion.finish_reason
        if ids or finish:
            self._tell(stream_id, live, News(stream_id, ids, log_probs, finish))

    def _tell(self, stream_id: int, live: _Live, new: News) -> None:
        if self._live.get(stream_id) is not live:  # aborted, or over
            return
        if new.over:
            del self._live[stream_id]
        with self._news_lock:
            news = self._news.setdefault(stream_id, News(stream_id))
            news.token_ids += new.token_ids
            news.log_probs += new.log_probs
            news.finish, news.error = new.finish, new.error
            self._news_lock.notify()

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
                # It ends at once when the runtime is idle.
                await asyncio.sleep(_STATS_SECONDS)
        except Exception:
            _LOG.exception("no more statistics of the KV cache")


def _log_probs(completion: Any, ids: list[int]) -> list[float]:
    """That of each new id. The list is the whole answer's; some versions give the new part only."""
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
