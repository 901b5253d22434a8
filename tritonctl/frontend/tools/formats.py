# SPDX-License-Identifier: Apache-2.0
"""The tool call markup of checkpoint families, and its detection from a chat template.

A chat template contains the markup of the checkpoint's training, because it writes the calls of
earlier turns into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tritonctl.frontend.tools import bodies
from tritonctl.frontend.tools.blocks import BareJson, CallBlock, Delimited, HeadedJson, PythonCalls
from tritonctl.frontend.tools.calls import MakeId, mistral_id, openai_id

_KEYS_OF_A_CALL = ("name", "parameters", "arguments", "type", "function")


@dataclass(frozen=True, slots=True)
class Opener:
    """The start of a block."""

    text: str
    block: Callable[[], CallBlock]
    first: bool = False  # valid only before all other text, because it is not a special mark


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's markup."""

    openers: tuple[Opener, ...]
    read: bodies.ReadBody
    template: str  # text that identifies the family's chat templates; formats are tried in order
    separators: str = ""  # allowed between two calls, in addition to whitespace
    make_id: MakeId = openai_id


def _delimited_format(opener: str, closer: str, read: bodies.ReadBody, template: str) -> CallFormat:
    json = read is bodies.json_calls
    return CallFormat(
        (Opener(opener, partial(Delimited, opener, closer, json=json)),), read, template
    )


# Tried in order: the first format whose text is in the template matches.
FORMATS: Mapping[str, CallFormat] = {
    "qwen_coder": _delimited_format(
        "<tool_call>", "</tool_call>", bodies.qwen_coder_calls, "<parameter="
    ),
    "glm": _delimited_format("<tool_call>", "</tool_call>", bodies.glm_calls, "<arg_key>"),
    # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4 and many fine-tunes.
    "hermes": _delimited_format("<tool_call>", "</tool_call>", bodies.json_calls, "<tool_call>"),
    "deepseek": _delimited_format(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        bodies.deepseek_calls,
        "<｜tool▁calls▁begin｜>",
    ),
    "kimi": _delimited_format(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        bodies.kimi_calls,
        "<|tool_calls_section_begin|>",
    ),
    "mistral": CallFormat(
        (Opener("[TOOL_CALLS]", partial(HeadedJson, "[TOOL_CALLS]")),),
        bodies.mistral_calls,
        "[TOOL_CALLS]",
        make_id=mistral_id,
    ),
    "jamba": _delimited_format("<tool_calls>", "</tool_calls>", bodies.json_calls, "<tool_calls>"),
    "command_r": _delimited_format(
        "<|START_ACTION|>", "<|END_ACTION|>", bodies.json_calls, "<|START_ACTION|>"
    ),
    # Granite 3 writes no closer: its list then ends with the answer.
    "granite": _delimited_format(
        "<|tool_call|>", "<|/tool_call|>", bodies.json_calls, "<|tool_call|>"
    ),
    "internlm": _delimited_format(
        "<|action_start|><|plugin|>", "<|action_end|>", bodies.json_calls, "<|action_start|>"
    ),
    # Llama 4 and other models that write Python.
    "pythonic": CallFormat(
        (Opener("[", PythonCalls, first=True),), bodies.python_calls, "[func_name1("
    ),
    # Llama 3.1 to 3.3: the object alone, or after the mark.
    "llama3": CallFormat(
        (
            Opener("<|python_tag|>", partial(HeadedJson, "<|python_tag|>")),
            Opener("{", partial(BareJson, _KEYS_OF_A_CALL), first=True),
        ),
        bodies.json_calls,
        "<|python_tag|>",
        separators=";",
    ),
}
_LLAMA3 = ('"parameters"', "<|start_header_id|>")
_TOOLS = re.compile(r"\btools\b")


def find_format(template: str) -> str | None:
    """Return the name of a chat template's format; None: without tools, or unknown.

    template: Jinja source; of several templates, the one for tools.
    """
    if not _TOOLS.search(template):
        return None
    for name, markup in FORMATS.items():
        if markup.template in template:
            return name
    return "llama3" if all(mark in template for mark in _LLAMA3) else None
