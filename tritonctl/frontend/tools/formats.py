# SPDX-License-Identifier: Apache-2.0
"""The markup in which families of checkpoints call tools, and which one a template uses.

What a checkpoint was trained on is written in its chat template, where the calls of earlier turns
are put into the prompt again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tritonctl.frontend.tools import bodies
from tritonctl.frontend.tools.blocks import BareJson, Block, Delimited, HeadedJson, PythonCalls
from tritonctl.frontend.tools.calls import MakeId, mistral_id, openai_id

_KEYS_OF_A_CALL = ("name", "parameters", "arguments", "type", "function")


@dataclass(frozen=True, slots=True)
class Opener:
    """How a block begins. first: only in front of all text, where no mark tells it from text."""

    text: str
    block: Callable[[], Block]
    first: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """One family's markup.

    separators: characters besides whitespace that may stand between two calls. template: a text
    in the chat templates of the family that no other family has; formats are looked at in order.
    """

    openers: tuple[Opener, ...]
    read: bodies.ReadBody
    template: str
    separators: str = ""
    make_id: MakeId = openai_id


def _marked(opener: str, closer: str, read: bodies.ReadBody, template: str) -> Format:
    json = read is bodies.json_calls
    return Format((Opener(opener, partial(Delimited, opener, closer, json=json)),), read, template)


# The first one whose text is in the template.
FORMATS: Mapping[str, Format] = {
    "qwen_coder": _marked("<tool_call>", "</tool_call>", bodies.qwen_coder_calls, "<parameter="),
    "glm": _marked("<tool_call>", "</tool_call>", bodies.glm_calls, "<arg_key>"),
    # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4 and many fine-tunes.
    "hermes": _marked("<tool_call>", "</tool_call>", bodies.json_calls, "<tool_call>"),
    "deepseek": _marked(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        bodies.deepseek_calls,
        "<｜tool▁calls▁begin｜>",
    ),
    "kimi": _marked(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        bodies.kimi_calls,
        "<|tool_calls_section_begin|>",
    ),
    "mistral": Format(
        (Opener("[TOOL_CALLS]", partial(HeadedJson, "[TOOL_CALLS]")),),
        bodies.mistral_calls,
        "[TOOL_CALLS]",
        make_id=mistral_id,
    ),
    "jamba": _marked("<tool_calls>", "</tool_calls>", bodies.json_calls, "<tool_calls>"),
    "command_r": _marked(
        "<|START_ACTION|>", "<|END_ACTION|>", bodies.json_calls, "<|START_ACTION|>"
    ),
    # Granite 3 writes no closer: its list then ends with the answer.
    "granite": _marked("<|tool_call|>", "<|/tool_call|>", bodies.json_calls, "<|tool_call|>"),
    "internlm": _marked(
        "<|action_start|><|plugin|>", "<|action_end|>", bodies.json_calls, "<|action_start|>"
    ),
    # Llama 4 and other models that write Python.
    "pythonic": Format(
        (Opener("[", PythonCalls, first=True),), bodies.python_calls, "[func_name1("
    ),
    # Llama 3.1 to 3.3: the object alone, or behind the mark.
    "llama3": Format(
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


def format_of(template: str) -> str | None:
    """The name of the format that a chat template writes; None: it shows no tools, or is unknown.

    template: Jinja source; of several, the one that is used with tools.
    """
    if not _TOOLS.search(template):
        return None
    for name, known in FORMATS.items():
        if known.template in template:
            return name
    return "llama3" if all(mark in template for mark in _LLAMA3) else None
