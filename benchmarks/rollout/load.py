# SPDX-License-Identifier: Apache-2.0
"""Users at a steady rate through Envoy, and what each of their requests met."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import CHECKOUT, MODEL, PROMPTS, SILENT
from planting import USER_HEADER
from tritonctl.loadtest.run.environment import generator_python

RATE, USERS = 20, 1000
TOKENS = 24  # of every answer: whatever the model would like
_RESUMES = 5
_LONGEST = 3600
_TIMEOUT = 20.0
_START_SECONDS = 2.0


@dataclass(frozen=True)
class Asked:
    """One request. Times are seconds since 1970. version: of the release that answered last."""

    user: str
    sent: float
    end: float
    first: float | None
    outcome: str
    tokens: int
    version: str
    resumes: int
    error: str

    @property
    def failed(self) -> bool:
        """It has no whole answer."""
        return self.outcome != "ok"

    @property
    def lost(self) -> int:
        """Tokens missing or doubled in an answer that came to its end."""
        return 0 if self.failed else abs(TOKENS - self.tokens)


class Load:
    """A generator that sends until it is stopped."""

    def __init__(self, url: str, folder: Path, *, seed: int = 1, rate: float = RATE) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._began = time.time() + _START_SECONDS
        plan = {
            "schema": "tritonctl/loadplan/v1",
            "endpoint": {"protocol": "grpc", "url": url},
            "model": MODEL,
            "kind": "text",
            "classes": [
                {
                    "name": "user",
                    "prompts": str(PROMPTS),
                    "max_tokens": TOKENS,
                    "parameters": {"end_id": -1},
                }
            ],
            "arrivals": {"process": "poisson", "rate": rate},
            "duration_seconds": _LONGEST,
            "seed": seed,
            "timeout_seconds": _TIMEOUT,
            "users": {"header": USER_HEADER, "count": USERS},
            "resumes": _RESUMES,
            "started_at": self._began,
        }
        file = folder / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        program = CHECKOUT / "loadtests" / "generator.py"
        self._log = (folder / "generator.log").open("wb")
        command = [generator_python(SILENT), program, "--plan", file, "--output", folder]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def stop(self) -> list[Asked]:
        """Send nothing more, wait for the answers. Raises RuntimeError where it has failed."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(_TIMEOUT + 60)
        self._log.close()
        if code:
            raise RuntimeError((self._folder / "generator.log").read_text(encoding="utf-8"))
        return self.so_far()

    def so_far(self) -> list[Asked]:
        """What has ended until now, in the order of sending."""
        found = []
        for file in self._folder.glob("records-*.jsonl"):
            whole = file.read_bytes().rpartition(b"\n")[0]
            found += [self._asked(json.loads(line)) for line in whole.splitlines()]
        return sorted(found, key=lambda each: each.sent)

    def _asked(self, record: dict[str, Any]) -> Asked:
        def at(microseconds: int) -> float:
            return self._began + microseconds / 1e6

        return Asked(
            user=record["user"],
            sent=at(record["sent"]),
            end=at(record["end"]),
            first=at(record["at"][0]) if record["at"] else None,
            outcome=record["outcome"],
            tokens=record["out"],
            version=record.get("version", ""),
            resumes=record.get("resumes", 0),
            error=record.get("error", {}).get("message", ""),
        )


def users_of(asked: Sequence[Asked]) -> int:
    """How many different ones."""
    return len({each.user for each in asked})
