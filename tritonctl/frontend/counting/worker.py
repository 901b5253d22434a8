# SPDX-License-Identifier: Apache-2.0
"""The process that counts a model's prompts. It restarts after a crash.

It runs the code of the model's tokenizer step (python_backends/countlib), so its counts equal the
server's. Many requests may count at once: the process counts all requests in the pipe together.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

_Pipe = TypeVar("_Pipe")
Tensors = Mapping[str, Sequence[Any]]

_START_SECONDS = 60.0
_MAX_LINE_BYTES = 1 << 20  # of an answer
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 30.0


class CountRefusedError(Exception):
    """The tokenizer step would refuse this request; the text has the reason."""


class TooLongToCountError(Exception):
    """The prompt has more than `more_than` tokens; the process stopped counting there."""

    def __init__(self, more_than: int) -> None:
        super().__init__(f"more than {more_than} tokens")
        self.more_than = more_than


class CountUnavailableError(Exception):
    """The process does not run, or crashed on this request; the text has the reason."""


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer. max_input_len, add_special_tokens: its step's parameters, if it has them."""

    folder: Path  # the version folder of the step that tokenises
    max_input_len: int = 1
    add_special_tokens: str = "true"

    @property
    def tokenizer(self) -> Path:
        """The step's tokenizer.json."""
        return self.folder / "tokenizer" / "tokenizer.json"

    def command(self) -> list[str]:
        """Return the worker's command line."""
        return [
            *(sys.executable, "-m", "countlib", str(self.folder)),
            *("--max-input-len", str(self.max_input_len)),
            *("--add-special-tokens", self.add_special_tokens),
        ]


class CountingWorker:
    """One model's process. `library`: the folder that contains countlib.

    It starts with the first request. After a crash it restarts after a pause; each consecutive
    failure doubles the pause, up to half a minute.
    """

    def __init__(
        self, source: TokenizerSource, library: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._library = library
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._pending: dict[int, asyncio.Future[list[int]]] = {}
        self._numbers = itertools.count(1)
        self._failures = 0
        self._not_before = 0.0
        self.problem = ""

    async def count(self, tensors: Tensors) -> list[int]:
        """Count the tokens of each item. Raises one of this module's errors."""
        process = self._process or await self._ensure_started()
        number = next(self._numbers)
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        line = orjson.dumps({"id": number, "tensors": tensors}, option=orjson.OPT_APPEND_NEWLINE)
        try:
            stdin = _pipe(process.stdin)
            stdin.write(line)
            if len(line) > _MAX_LINE_BYTES:
                await stdin.drain()
            return await answer
        except (ConnectionError, RuntimeError) as error:
            raise CountUnavailableError(self.problem or str(error)) from error
        finally:
            self._pending.pop(number, None)

    def recreate(self) -> CountingWorker:
        """Create a new worker, which reads the tokenizer again."""
        return CountingWorker(self._source, self._library, clock=self._clock)

    async def start(self) -> None:
        """Load the tokenizer now. Raises CountUnavailableError."""
        await self._ensure_started()

    async def close(self) -> None:
        """End the process; pending requests raise CountUnavailableError."""
        process, self._process = self._process, None
        self._not_before = float("inf")
        if process is not None:
            _kill(process)
        if self._reader is not None:
            await self._reader
            self._reader = None

    async def _ensure_started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None:
                return self._process
            if self._clock() < self._not_before:
                raise CountUnavailableError(self.problem or "closed")
            process = await self._spawn()
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await self._ready(process)
            except (TimeoutError, CountUnavailableError) as error:
                _kill(process)
                await process.wait()
                self._record_failure(str(error) or f"not ready within {_START_SECONDS:.0f} s")
                raise CountUnavailableError(self.problem) from error
            except asyncio.CancelledError:
                # The client disconnected, or the frontend ends; a next request starts another one.
                _kill(process)
                await process.wait()
                raise
            self._process, self.problem = process, ""
            self._reader = asyncio.create_task(self._read(process))
            return process

    async def _spawn(self) -> asyncio.subprocess.Process:
        environment = {"PYTHONPATH": str(self._library), "PYTHONUTF8": "1"}
        return await asyncio.create_subprocess_exec(
            *self._source.command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | environment,
            limit=_MAX_LINE_BYTES,
        )

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        line = await _pipe(process.stdout).readline()
        if not line:
            error_output = (await _pipe(process.stderr).read()).decode(errors="replace").strip()
            raise CountUnavailableError(error_output.rpartition("\n")[2] or "it ended at once")
        first = json.loads(line)
        if "error" in first:
            raise CountUnavailableError(str(first["error"]))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Deliver answers until the process ends; then fail the pending requests."""
        error_output = asyncio.create_task(_pipe(process.stderr).read())
        while line := await _pipe(process.stdout).readline():
            self._deliver(json.loads(line))
            self._failures = 0
        status = await process.wait()
        text = (await error_output).decode(errors="replace").strip().rpartition("\n")[2]
        if self._process is process:
            self._process = None
            self._record_failure(text or f"it ended with status {status}")
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(CountUnavailableError(self.problem or "closed"))

    def _deliver(self, line: dict[str, Any]) -> None:
        answer = self._pending.get(line["id"])
        if answer is None or answer.done():  # the client disconnected
            return
        if "tokens" in line:
            answer.set_result(line["tokens"])
        elif "more_than" in line:
            answer.set_exception(TooLongToCountError(line["more_than"]))
        else:
            answer.set_exception(CountRefusedError(line["error"]))

    def _record_failure(self, problem: str) -> None:
        self.problem = problem
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16), _MAX_PAUSE_SECONDS)
        self._failures += 1
        self._not_before = self._clock() + pause


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


def _pipe(stream: _Pipe | None) -> _Pipe:
    if stream is None:
        raise CountUnavailableError("its process has no pipe")
    return stream
