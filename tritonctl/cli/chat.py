# SPDX-License-Identifier: Apache-2.0
"""`tritonctl chat`: a conversation in the terminal, or one turn per line of standard input."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import generate, options
from tritonctl.cli import sampling_options as asked
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import RequestRejectedError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.generation import Message, SamplingParameters


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as speller")],
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    sampling: asked.SamplingOptions,
    of_some_engines: asked.EngineSamplingOptions,
    server: ServerOptions,
    timeout: asked.Timeout = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Chat with a model: one turn per line; /reset starts over, /quit or Ctrl-D ends."""
    parameters = sampling.parameters(of_some_engines)
    with server.named(project) as named:
        find = partial(named.of_model, project, model)
        find()  # a missing server is reported before the user types anything
        talk = _Talk(voice.console(), find, model, parameters, timeout, system)
        if sys.stdin.isatty():
            _converse(talk)
        else:
            _read_turns(talk)


class _CtrlC(KeyboardInterrupt):
    """Ctrl-C at the terminal; SIGTERM and SIGHUP still end the command."""


@dataclass
class _Talk:
    """A conversation. Each turn looks the server up again: it may have been restarted."""

    console: Console
    find: Callable[[], Endpoint]
    model: str
    sampling: SamplingParameters
    timeout: float | None
    system: str | None
    turns: list[Message] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Act on a line of input; False when it ends the conversation."""
        text = line.strip()
        if text == "/quit":
            return False
        if text == "/reset":
            self.turns.clear()
            self.console.note("a new conversation")
        elif text:
            self._ask(text)
        return True

    def _ask(self, text: str) -> None:
        """One turn; a failed or cancelled one is not kept."""
        from tritonctl.protocol.client import TritonClient

        first: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        turns = [*self.turns, {"role": "user", "content": text}]
        at = self.find()
        with TritonClient(at.url, tls=at.tls, api_key=at.api_key) as client:
            messages = [*first, *turns]
            stream = client.stream(self.model, messages, self.sampling, timeout=self.timeout)
            answer = generate.show(self.console, stream)
        self.turns = [*turns, {"role": "assistant", "content": answer.text}]
        generate.finish(self.console, answer)


def _read_turns(talk: _Talk) -> None:
    """One turn per line; the first failure ends the command with its exit code."""
    if hasattr(sys.stdin, "reconfigure"):  # the server judges whether it is UTF-8
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    for line in sys.stdin:
        if not talk.take(line):
            return


def _converse(talk: _Talk) -> None:
    """Read turns at the terminal until Ctrl-D; a refused or cancelled one is not kept."""
    talk.console.note(f"Chat with {talk.model}. /reset starts over, /quit or Ctrl-D ends.")
    going = True
    with _ctrl_c_cancels():
        while going:
            try:
                line = talk.console.ask("> ")
                going = line is not None and talk.take(line)
            except _CtrlC:
                talk.console.text("\n")
                talk.console.note("cancelled; Ctrl-D ends")
            except RequestRejectedError as error:
                talk.console.error(error)


@contextmanager
def _ctrl_c_cancels() -> Iterator[None]:
    def cancel(*_: object) -> None:
        raise _CtrlC

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
