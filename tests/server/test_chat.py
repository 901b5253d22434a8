# SPDX-License-Identifier: Apache-2.0
"""Conversations through a real Triton, and `tritonctl chat` in a pseudo-terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.json_page import as_documented
from tritonctl.errors import RequestRejectedError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import Message, Prompt
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]
ANSWER = "seven thousand three hundred forty-two"
PATIENCE_SECONDS = 60.0


def user(text: str) -> list[Message]:
    """A conversation of one turn."""
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(speller_server: Server) -> Iterator[TritonClient]:
    """A client of the session's server."""
    with TritonClient(speller_server.grpc_url) as client:
        yield client


@pytest.mark.path
def test_the_speller_answers_in_chat_form(client: TritonClient) -> None:
    """Streamed and whole, synchronous and asynchronous, beside text_input."""
    chunks = list(client.stream("exact", user("7342 in English")))
    assert len(chunks) > 1
    assert "".join(chunk.text for chunk in chunks) == ANSWER

    async def ask() -> str:
        async with AsyncTritonClient(client.url) as other:
            return (await other.generate("exact", user("7342 in English"))).text

    assert asyncio.run(ask()) == ANSWER
    assert client.generate("exact", "7342 in English:").text == f" {ANSWER}"


def test_chat_equals_the_template_written_by_hand(
    client: TritonClient, held_out: list[dict[str, str]]
) -> None:
    """Same ids in, same text out: text_input brings the template's own text, BOS included."""
    for prompt in held_out[:20]:
        turn = prompt["text_input"]
        by_hand = client.generate("exact", f"<|begin_of_text|><|user|>{turn}<|assistant|>")
        chat = client.generate("exact", user(turn))
        assert (chat.text, chat.num_input_tokens) == (by_hand.text, by_hand.num_input_tokens)


BAD: dict[str, tuple[list[Message], str]] = {
    "role": ([{"role": "judge", "content": "x"}], "unknown role judge: use user or assistant"),
    "surrogate": (user("\ud83d"), "messages is not valid UTF-8"),
    "ten megabytes": (user("x" * 10_000_000), "messages has 10"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_messages_are_refused_by_name(client: TritonClient, case: str) -> None:
    """The message names the tensor and the place; the next one is answered."""
    messages, problem = BAD[case]
    with pytest.raises(RequestRejectedError, match=problem):
        client.generate("int8", messages)
    assert client.generate("int8", user("7 in English")).text == "seven"


def test_good_and_bad_side_by_side(client: TritonClient) -> None:
    """Batches of text, conversations and refused ones: each gets its own answer, 200 times."""
    kinds: list[tuple[Prompt, str | None]] = [
        (user("7342 in English"), ANSWER),
        ("7342 in English:", f" {ANSWER}"),
        ([], None),
        (b"\xff", None),
        ([{"role": "judge", "content": "x"}], None),
    ]

    async def one(client: AsyncTritonClient, prompt: Prompt, right: str | None) -> bool:
        try:
            return (await client.generate("exact", prompt, timeout=120)).text == right
        except RequestRejectedError:
            return right is None

    async def run() -> list[bool]:
        async with AsyncTritonClient(client.url) as other:
            asked = (one(other, *kinds[n % len(kinds)]) for n in range(200))
            return await asyncio.gather(*asked)

    assert all(asyncio.run(run()))


@pytest.mark.path
@pytest.mark.usefixtures("speller_server")
def test_chat_command_takes_a_turn_per_line(cli: Cli, speller_project: Project) -> None:
    """Answers alone on standard output; /quit ends before the rest."""
    lines = b"7342 in English\n\n/reset\n7 in English\r\n/quit\n8 in English\n"
    done = cli("chat", "exact", cwd=speller_project.root, stdin=lines)
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\nseven\n")
    assert "TTFT" in done.stderr
    quiet = cli("chat", "exact", "-q", cwd=speller_project.root, stdin=b"7 in English")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "seven\n", "")


@pytest.mark.usefixtures("speller_server")
def test_chat_command_remembers(cli: Cli, speller_project: Project) -> None:
    """The second turn carries the first and its answer; after /reset it does not."""
    lines = b"7342 in English\n7 in English\n/reset\n7 in English\n"
    done = cli("chat", "exact", "--json", cwd=speller_project.root, stdin=lines)
    first, second, third = (as_documented("chat", line) for line in done.stdout.splitlines())
    assert first["text"] == ANSWER
    tokens = [answer["num_input_tokens"] for answer in (first, second, third)]
    assert tokens[1] > tokens[0] + first["num_output_tokens"]
    assert tokens[2] < tokens[0]


@pytest.mark.usefixtures("speller_server")
@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["exact", "--system", "Be brief."], b"7 in English\n", 0, ""),  # no role of the template
        (["exact"], b"\xff\n", 2, "messages is not valid UTF-8"),
        (["exact", "--url", "127.0.0.1:9"], b"7\n", 7, "tritonctl up"),
        (["exact", "--url", "127.0.0.1:9"], b"", 0, ""),
    ],
)
def test_chat_command_exit_codes(
    cli: Cli, speller_project: Project, arguments: list[str], stdin: bytes, code: int, words: str
) -> None:
    """As everywhere: the first failing line ends a piped session with the code of its kind."""
    done = cli("chat", *arguments, cwd=speller_project.root, stdin=stdin)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


class Terminal:
    """`tritonctl chat` with a pseudo-terminal for all three streams."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(project.root)
            command = [sys.executable, "-m", "tritonctl", "chat", *arguments]
            environment = os.environ | {"TERM": "dumb", "COLUMNS": "200"}
            os.execve(sys.executable, command, environment)  # noqa: S606 - nothing to quote
        self._seen = ""

    def type(self, text: str) -> None:
        """Type; \\x03 is Ctrl-C, \\x04 Ctrl-D."""
        os.write(self._fd, text.encode())

    def until(self, words: str) -> str:
        """What was shown since the last call, up to and with `words`."""
        self._read(lambda: words in self._seen, f"{words!r}")
        shown, _, self._seen = self._seen.partition(words)
        return shown + words

    def _read(self, is_shown: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_shown():
            assert time.monotonic() < deadline, f"{what} never came: {self._seen!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self._seen += os.read(self._fd, 65536).decode("utf-8", "replace")

    def press_ctrl_c(self) -> str:
        """Press until it is heard: between printing a prompt and reading, readline is deaf."""
        for _ in range(20):
            self.type("\x03")
            time.sleep(0.5)
            if select.select([self._fd], [], [], 0)[0]:
                break
        return self.until("cancelled; Ctrl-D ends")

    def first_words(self) -> None:
        """Wait until something new is shown."""
        self._read(lambda: bool(self._seen), "an answer")

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                return os.waitstatus_to_exitcode(status)
            if select.select([self._fd], [], [], 0.05)[0]:
                self._read_rest()
        pytest.fail("the session never ended")

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def _read_rest(self) -> None:
        try:
            self._seen += os.read(self._fd, 65536).decode("utf-8", "replace")
        except OSError:  # Linux says so when the other side has gone
            time.sleep(0.05)


@pytest.fixture
def terminal(speller_server: Server, speller_project: Project) -> Iterator[Terminal]:
    """A session that has shown its first prompt."""
    opened = Terminal(speller_project, "exact", "--max-tokens", "400")
    opened.until("> ")
    yield opened
    opened.close()


def test_ctrl_c_cancels_the_running_answer_only(terminal: Terminal) -> None:
    """The session goes on; at the prompt, too, Ctrl-C ends nothing."""
    terminal.press_ctrl_c()
    terminal.until("> ")
    terminal.type("7342 in English\n")
    assert ANSWER in terminal.until("tokens/s")
    terminal.until("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_cancelled_answer_ends_at_once(speller_server: Server, speller_project: Project) -> None:
    """No timing line for it, and the next turn is answered."""
    opened = Terminal(speller_project, "exact", "--temperature", "5", "--seed", "3")
    try:
        for _ in range(5):  # a busy machine may show the whole answer before it takes the key
            opened.until("> ")
            opened.type("colourless green ideas sleep\n")
            opened.until("ideas sleep\r\n")
            opened.first_words()
            if in_time := "tokens/s" not in opened.press_ctrl_c():
                break
        assert in_time
        opened.until("> ")
        opened.type("/reset\n")
        opened.until("a new conversation")
        opened.type("7 in English\n")
        opened.until("tokens/s")
        opened.until("> ")
        opened.type("\x04")
        assert opened.end() == 0
    finally:
        opened.close()
