# SPDX-License-Identifier: Apache-2.0
"""Find models whose process or engine makes no progress, by their uptime in Triton's metrics.

Triton calls a model ready while its stub exists, even a stopped one. Each of our Python models
counts `tritonctl_uptime_seconds_total` while its process and its engine run
(python_backends/textlib/engine/activity.py). Standard library only: the module is part of the
supervisor, of the first process of containers and of the frontend.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

# An uptime grows every second; a busy machine delays that.
FROZEN_SECONDS = 5.0
POLL_SECONDS = 2.0
_TIMEOUT_SECONDS = 1.0
_UPTIME = re.compile(r"^tritonctl_uptime_seconds_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ModelProgress:
    """The uptime of each process of a server's models. Pure bookkeeping without clock or I/O."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], tuple[float, float]] = {}  # value, time of change

    def update(self, page: str, now: float) -> None:
        """Read a page of metrics. now: monotonic seconds."""
        values = {}
        for text, value in _UPTIME.findall(page):
            labels = dict(_LABEL.findall(text))
            key = labels["model"], labels.get("model_instance", ""), labels.get("process", "")
            previous = self._values.get(key)
            has_grown = previous is None or previous[0] != float(value)
            values[key] = (float(value), now) if has_grown or previous is None else previous
        self._values = values

    def frozen(self, now: float, exists: Callable[[str], bool] = lambda _: True) -> set[str]:
        """Return the models with an instance that stands still.

        A process that Triton killed leaves its metrics: one that runs counts for its instance.
        exists: whether a process, named by its id, exists.
        """
        changed_at: dict[tuple[str, str], float] = {}
        for (model, instance, process), (_, time_of_change) in self._values.items():
            if exists(process):
                key = model, instance
                changed_at[key] = max(changed_at.get(key, float("-inf")), time_of_change)
        return {
            model for (model, _), changed in changed_at.items() if now - changed >= FROZEN_SECONDS
        }


class ProgressWatch:
    """Polls a local server in a thread. on_change: called with the frozen models."""

    def __init__(
        self,
        metrics_url: str,
        on_change: Callable[[Iterable[str]], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics_url = metrics_url
        self._on_change = on_change
        self._clock = clock
        self._progress = ModelProgress()
        self.frozen: set[str] = set()

    def makes_progress(self) -> bool:
        """Whether no model was frozen at the last poll."""
        return not self.frozen

    def start(self) -> None:
        """Poll until the process ends."""
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def poll(self) -> None:
        """Read the metrics once; a server that does not answer keeps its state."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(self._metrics_url, timeout=_TIMEOUT_SECONDS) as answer:
                page = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return
        self._progress.update(page, self._clock())
        frozen = self._progress.frozen(self._clock(), _process_exists)
        if frozen != self.frozen:
            self.frozen = frozen
            self._on_change(frozen)

    def _run(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            with suppress(OSError):  # `on_change` cannot write: the disk is full, a folder gone
                self.poll()


def describe_change(frozen: Iterable[str]) -> str:
    """Describe for the log which models are frozen now."""
    names = ", ".join(sorted(frozen))
    if not names:
        return "every model makes progress again: ready"
    return (
        f"{names}: no progress for {FROZEN_SECONDS:.0f} s, so the server is not ready. Its process "
        "is stopped (SIGSTOP, a debugger), or its engine is stuck"
    )


def read_frozen(file: Path) -> list[str]:
    """Read the frozen models that a supervisor has written; empty without a file."""
    try:
        return [str(name) for name in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []


def _process_exists(pid: str) -> bool:
    return Path(f"/proc/{pid}/stat").exists()
