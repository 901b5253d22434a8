# SPDX-License-Identifier: Apache-2.0
"""Prompt files: JSON lines (text_input, messages, inputs, rows), or .txt with one text per line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from loadlib.schema import field_error
from loadlib.tensors import check_tensor
from loadlib.text_rows import text_row, text_rows
from loadlib.trace import parse_json_line, read_lines

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class LoadPrompt:
    """The content of a line: text to continue, a conversation, or tensors by name."""

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    inputs: dict[str, Any] | None = None

    def as_messages(self, turn: int) -> list[Message]:
        """Return its messages for a turn: all in the first turn, then the last one only."""
        if self.messages is None:
            return [{"role": "user", "content": self.text or ""}]
        return list(self.messages) if turn == 0 else [self.messages[-1]]


def read_prompts(path: Path, field: str, kind: str) -> list[LoadPrompt]:
    """Read the prompts of a file. Raises RunRefusedError with file and line for a bad one."""
    plain = path.suffix == ".txt"
    prompts = [
        _parse_text_line(line, kind)
        if plain
        else _parse_json_line(line, f"{path}:{number}", kind, path.parent)
        for number, line in enumerate(read_lines(path, field), 1)
        if line.strip()
    ]
    if not prompts:
        raise field_error(field, f"{path}:1: no prompts in the file", "write a prompt on each line")
    return prompts


def _parse_text_line(line: str, kind: str) -> LoadPrompt:
    return LoadPrompt(inputs=text_row(line)) if kind == "tensors" else LoadPrompt(text=line)


def _parse_json_line(line: str, location: str, kind: str, folder: Path) -> LoadPrompt:
    content = parse_json_line(line, location)
    if not isinstance(content, dict):
        raise field_error(location, "not an object", 'write lines like {"text_input": "..."}')
    if kind == "tensors" and content and "inputs" not in content:
        return LoadPrompt(inputs=text_rows(content, location, folder))
    if kind == "tensors":
        return LoadPrompt(inputs=_inputs(content.get("inputs"), location))
    if isinstance(content.get("text_input"), str):
        return LoadPrompt(text=content["text_input"])
    if "messages" in content:
        return LoadPrompt(messages=_messages(content["messages"], location))
    raise field_error(location, "neither text_input nor messages", 'write {"text_input": "..."}')


def _messages(content: Any, location: str) -> tuple[Message, ...]:
    is_conversation = isinstance(content, list) and all(
        isinstance(item, dict) and {"role", "content"} <= item.keys() for item in content
    )
    if not is_conversation or not content:
        raise field_error(
            f"{location}: messages",
            "not a conversation",
            'give [{"role": "user", "content": "..."}]',
        )
    return tuple(content)


def _inputs(content: Any, location: str) -> dict[str, Any]:
    if not isinstance(content, dict) or not content:
        raise field_error(
            location,
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
            raise field_error(
                f"{location}: inputs.{name}", f"no {missing[0]}", "give shape, datatype, data"
            )
        check_tensor(tensor, f"{location}: inputs.{name}")
    return content


def resize_prompt(prompt: LoadPrompt, words: int) -> LoadPrompt:
    """Cut or repeat a prompt, or a conversation's last message, to a number of words."""
    if prompt.messages:
        *earlier_messages, last = prompt.messages
        content = _resize_text(last["content"], words)
        return replace(prompt, messages=(*earlier_messages, {**last, "content": content}))
    return replace(prompt, text=_resize_text(prompt.text or "", words))


def _resize_text(text: str, count: int) -> str:
    words = text.split() or ["a"]
    return " ".join((words * (count // len(words) + 1))[:count])


class PromptOrder:
    """Selects prompts: sequentially, shuffled again in each round, or at random."""

    def __init__(self, prompts: list[LoadPrompt], order: str, random: Random) -> None:
        self._prompts = prompts
        self._order = order
        self._random = random
        self._round: list[LoadPrompt] = []

    def next_prompt(self) -> LoadPrompt:
        """Return the next prompt."""
        if self._order == "random":
            return self._random.choice(self._prompts)
        if not self._round:
            self._round = list(self._prompts)
            if self._order == "shuffled":
                self._random.shuffle(self._round)
            self._round.reverse()
        return self._round.pop()
