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

from tritonctl.cli import generate, options, sampling_options
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import RequestRejectedError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.generation import Message, SamplingParameters


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as speller")],
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    sampling: sampling_options.SamplingOptions,
    engine_options: sampling_options.EngineSamplingOptions,
    server: ServerOptions,
    timeout: sampling_options.Timeout = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Chat with a model: one turn per line; /reset starts over, /quit or Ctrl-D ends."""
    parameters = sampling.parameters(engine_options)
    with server.open_server(project) as named_server:
        find = partial(named_server.model_endpoint, project, model)
        find()  # a missing server is reported before the user types anything
        talk = _ChatSession(output_options.console(), find, model, parameters, timeout, system)
        if sys.stdin.isatty():
            _converse(talk)
        else:
            _read_turns(talk)


class _CtrlC(KeyboardInterrupt):
    """Ctrl-C at the terminal; SIGTERM and SIGHUP still end the command."""


@dataclass
class _ChatSession:
    """A conversation. Each turn looks the server up again, because it may have restarted."""

    console: Console
    find_endpoint: Callable[[], Endpoint]
    model: str
    sampling: SamplingParameters
    timeout: float | None
    system: str | None
    turns: list[Message] = field(default_factory=list)

    def handle_line(self, line: str) -> bool:
        """Handle a line of input; False if it ends the conversation."""
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
        """Run one turn; a failed or cancelled turn is not stored."""
        from tritonctl.protocol.client import TritonClient

        first: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        turns = [*self.turns, {"role": "user", "content": text}]
        endpoint = self.find_endpoint()
        with TritonClient(endpoint.url, tls=endpoint.tls, api_key=endpoint.api_key) as client:
            messages = [*first, *turns]
            stream = client.stream(self.model, messages, self.sampling, timeout=self.timeout)
            answer = generate.print_stream(self.console, stream)
        self.turns = [*turns, {"role": "assistant", "content": answer.text}]
        generate.print_summary(self.console, answer)


def _read_turns(talk: _ChatSession) -> None:
    """Run one turn per line; the first failure ends the command with its exit code."""
    if hasattr(sys.stdin, "reconfigure"):  # the server checks the UTF-8
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    for line in sys.stdin:
        if not talk.handle_line(line):
            return


def _converse(talk: _ChatSession) -> None:
    """Read turns at the terminal until Ctrl-D; a rejected or cancelled turn is not stored."""
    talk.console.note(f"Chat with {talk.model}. /reset starts over, /quit or Ctrl-D ends.")
    continues = True
    with _ctrl_c_cancels():
        while continues:
            try:
                line = talk.console.ask("> ")
                continues = line is not None and talk.handle_line(line)
            except _CtrlC:
                talk.console.text("\n")
                talk.console.note("cancelled; Ctrl-D ends")
            except RequestRejectedError as error:
                talk.console.error(error)


@contextmanager
def _ctrl_c_cancels() -> Iterator[None]:
    def cancel(*_: object) -> None:
        raise _CtrlC

    previous_handler = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
