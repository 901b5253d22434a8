# SPDX-License-Identifier: Apache-2.0
"""Files of prompts: JSON lines (text_input, messages, inputs, rows), or .txt with a text a line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from loadlib.rows import rows, text_row
from loadlib.schema import refused
from loadlib.tensors import check_tensor
from loadlib.trace import json_line, read_lines

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line's content: text to continue, a conversation, or tensors by name."""

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    inputs: dict[str, Any] | None = None

    def as_messages(self, turn: int) -> list[Message]:
        """Its part of a conversation: all of it in the first turn, then its last message."""
        if self.messages is None:
            return [{"role": "user", "content": self.text or ""}]
        return list(self.messages) if turn == 0 else [self.messages[-1]]


def read_prompts(path: Path, field: str, kind: str) -> list[Prompt]:
    """All prompts of a file; Refusal with file and line for a bad or missing one."""
    plain = path.suffix == ".txt"
    prompts = [
        _plain(line, kind) if plain else _prompt(line, f"{path}:{number}", kind, path.parent)
        for number, line in enumerate(read_lines(path, field), 1)
        if line.strip()
    ]
    if not prompts:
        raise refused(field, f"{path}:1: no prompts in the file", "write a prompt on each line")
    return prompts


def _plain(line: str, kind: str) -> Prompt:
    return Prompt(inputs=text_row(line)) if kind == "tensors" else Prompt(text=line)


def _prompt(line: str, where: str, kind: str, folder: Path) -> Prompt:
    content = json_line(line, where)
    if not isinstance(content, dict):
        raise refused(where, "not an object", 'write lines like {"text_input": "..."}')
    if kind == "tensors" and content and "inputs" not in content:
        return Prompt(inputs=rows(content, where, folder))
    if kind == "tensors":
        return Prompt(inputs=_inputs(content.get("inputs"), where))
    if isinstance(content.get("text_input"), str):
        return Prompt(text=content["text_input"])
    if "messages" in content:
        return Prompt(messages=_messages(content["messages"], where))
    raise refused(where, "neither text_input nor messages", 'write {"text_input": "..."}')


def _messages(content: Any, where: str) -> tuple[Message, ...]:
    whole = isinstance(content, list) and all(
        isinstance(item, dict) and {"role", "content"} <= item.keys() for item in content
    )
    if not whole or not content:
        raise refused(
            f"{where}: messages", "not a conversation", 'give [{"role": "user", "content": "..."}]'
        )
    return tuple(content)


def _inputs(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict) or not content:
        raise refused(
            where,
            "no inputs",
            'write {"inputs": {"X": {"shape": [1], "datatype": "FP32", "data": [0]}}}',
        )
    for name, tensor in content.items():
        missing = [
            key
            for key in ("shape", "datatype", "data")
            if not isinstance(tensor, dict) or key not in tensor
        ]
        if missing:
            raise refused(
                f"{where}: inputs.{name}", f"no {missing[0]}", "give shape, datatype, data"
            )
        check_tensor(tensor, f"{where}: inputs.{name}")
    return content


def resized(prompt: Prompt, words: int) -> Prompt:
    """The prompt cut, or repeated, to so many words; of a conversation, its last message."""
    if prompt.messages:
        *before, last = prompt.messages
        content = _words(last["content"], words)
        return replace(prompt, messages=(*before, {**last, "content": content}))
    return replace(prompt, text=_words(prompt.text or "", words))


def _words(text: str, count: int) -> str:
    words = text.split() or ["a"]
    return " ".join((words * (count // len(words) + 1))[:count])


class PromptOrder:
    """Which prompt is next: in order, in a new shuffle each time round, or any at all."""

    def __init__(self, prompts: list[Prompt], order: str, random: Random) -> None:
        self._prompts = prompts
        self._order = order
        self._random = random
        self._round: list[Prompt] = []

    def next(self) -> Prompt:
        """The next prompt."""
        if self._order == "random":
            return self._random.choice(self._prompts)
        if not self._round:
            self._round = list(self._prompts)
            if self._order == "shuffled":
                self._random.shuffle(self._round)
            self._round.reverse()
        return self._round.pop()
