# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its DevTools protocol over a pipe: no port, no driver."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_SECONDS = 120.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)
Message = dict[str, Any]


def chromium() -> str | None:
    """Where a Chromium is, if anywhere."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Browser:
    """A running Chromium, at the other end of two pipes."""

    to_browser: int
    from_browser: int
    _ids: Iterator[int] = field(default_factory=lambda: count(1))
    _rest: bytes = b""

    @contextmanager
    def page(self) -> Iterator[Page]:
        """An empty tab that shares nothing with others: a profile of its own."""
        context = self.call("Target.createBrowserContext", {})
        try:
            target = self.call("Target.createTarget", {"url": "about:blank", **context})
            attached = self.call("Target.attachToTarget", {**target, "flatten": True})
            page = Page(self, attached["sessionId"])
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            self.call("Target.disposeBrowserContext", context)

    def call(
        self,
        method: str,
        parameters: Message,
        session: str | None = None,
        events: list[Message] | None = None,
    ) -> Message:
        """A command and its answer; what the session tells meanwhile goes to `events`."""
        number = next(self._ids)
        message: Message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        _write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                found: Message = answer["result"]
                return found
            if events is not None and answer.get("sessionId") == session:
                events.append(answer)

    def _read(self) -> Message:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.from_browser], [], [], PATIENCE_SECONDS)
            assert ready, "Chromium says nothing any more"
            piece = os.read(self.from_browser, 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        found: Message = json.loads(line)
        return found


@dataclass
class Page:
    """One tab. `events` is everything that it told of its own accord."""

    browser: Browser
    session: str
    events: list[Message] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> Message:
        """A command of the protocol and its answer."""
        return self.browser.call(method, parameters, self.session, self.events)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def open(self, path: Path) -> None:
        """Load a file."""
        self.call("Page.navigate", url=path.resolve().as_uri())

    def wait_for(self, expression: str) -> Any:
        """Until the expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Between two documents there is none.
        guarded = f"document.documentElement ? ({expression}) : false"
        while not (value := self.evaluate(guarded)):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.problems()}"
            time.sleep(0.1)
        return value

    def media(self, **features: str) -> None:
        """Pretend a medium or a preference: media="print", prefers_color_scheme="dark"."""
        medium = features.pop("media", "")
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.call("Emulation.setEmulatedMedia", media=medium, features=named)

    def size(self, width: int, height: int) -> None:
        """The viewport."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """A PNG of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def problems(self) -> list[str]:
        """Errors, warnings and exceptions that the console got, dialogs that opened."""
        found = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"])[:500])
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
                found.append(json.dumps(told["args"])[:500])
            elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
            elif method == "Page.javascriptDialogOpening":
                found.append(f"dialog: {told['message']}")
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for, the page's own data left out."""
        asked = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [str(told["request"]["url"]) for told in asked]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser of our own."""
    binary = chromium()
    assert binary is not None
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    process = _spawn(binary, profile, commands, answers)
    os.close(commands)
    os.close(answers)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.killpg(process, signal.SIGKILL)  # with its renderers
        os.waitpid(process, 0)
        os.close(to_browser)
        os.close(from_browser)


def _spawn(binary: str, profile: Path, commands: int, answers: int) -> int:
    """Chromium reads commands from descriptor 3 and answers on 4."""
    # Out of the way first: one of them may itself be 3 or 4.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (commands, answers)]
    silence = os.open(os.devnull, os.O_RDWR)
    moves = [(os.POSIX_SPAWN_DUP2, silence, output) for output in (1, 2)]
    moves += [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
    arguments = [binary, *FLAGS, f"--user-data-dir={profile}"]
    try:
        return os.posix_spawn(binary, arguments, os.environ, file_actions=moves, setpgroup=0)
    finally:
        for descriptor in (*high, silence):
            os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
