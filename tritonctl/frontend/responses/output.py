# SPDX-License-Identifier: Apache-2.0
"""Build the items of an answer's `output`, and describe each change as an event of its stream.

An item is open until the next item starts or the answer ends. An answer that was cut off leaves its
last item `incomplete`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritonctl.frontend.tools.calls import CallArguments, CallStart, Content, Event, Thought

Record = dict[str, Any]
StreamEvent = Mapping[str, Any]  # its type and fields, without its sequence number

_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PART_TYPE = {"message": "output_text", "reasoning": "reasoning_text"}


def new_id(prefix: str) -> str:
    """Create an id in OpenAI's form."""
    return f"{prefix}_{secrets.token_hex(24)}"


class OutputBuilder:
    """The output of one answer so far: `items`, in the API's form."""

    def __init__(self) -> None:
        self.items: list[Record] = []
        self._open: Record | None = None  # the last item, while it may grow
        self._texts: list[str] = []  # of the open item
        self._log_probs: list[Record] = []  # of the open item's text

    @property
    def has_answer(self) -> bool:
        """Whether the output has more than reasoning."""
        return any(item["type"] != "reasoning" for item in self.items)

    def add(self, event: Event, log_probs: Sequence[Record] = ()) -> Iterator[StreamEvent]:
        """Add a part of the answer. log_probs: of the tokens of a Content."""
        match event:
            case Content():
                yield from self._continue_item("message")
                yield self._add_text(event.text, log_probs)
            case Thought():
                yield from self._continue_item("reasoning")
                yield self._add_text(event.text)
            case CallStart():
                yield from self.close()
                yield self._start_item(
                    "function_call", call_id=event.id, name=event.name, arguments=""
                )
            case CallArguments():
                self._texts.append(event.text)
                yield self._event("response.function_call_arguments.delta", delta=event.text)

    def close(
        self, log_probs: Sequence[Record] = (), *, is_complete: bool = True
    ) -> Iterator[StreamEvent]:
        """Close the open item, if any. log_probs: of tokens that add no text to a message."""
        item, text = self._open, "".join(self._texts)
        if item is None:
            return
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._event(
                "response.function_call_arguments.done", name=item["name"], arguments=text
            )
        else:
            kind = _PART_TYPE[item["type"]]
            part = self._part(text, [*self._log_probs, *log_probs])
            lists = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            yield self._event(f"response.{kind}.done", content_index=0, text=text, **lists)
            yield self._event("response.content_part.done", content_index=0, part=part)
            item["content"] = [part]
        item["status"] = "completed" if is_complete else "incomplete"
        self._open = None
        yield self._item_event("response.output_item.done", item)

    def add_empty_message(self) -> Iterator[StreamEvent]:
        """Add a message without text: an answer has one, or a call."""
        yield from self._continue_item("message")
        yield from self.close()

    def _continue_item(self, kind: str) -> Iterator[StreamEvent]:
        """Close an open item of another kind, and open one of this kind."""
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.close()
        fields: Record = {"role": "assistant"} if kind == "message" else {"summary": []}
        yield self._start_item(kind, **fields, content=[])
        yield self._event("response.content_part.added", content_index=0, part=self._part("", []))

    def _start_item(self, kind: str, **fields: Any) -> StreamEvent:
        item = {"id": new_id(_PREFIX[kind]), "type": kind, "status": "in_progress", **fields}
        self.items.append(item)
        self._open, self._texts, self._log_probs = item, [], []
        return self._item_event("response.output_item.added", item)

    def _add_text(self, text: str, log_probs: Sequence[Record] = ()) -> StreamEvent:
        self._texts.append(text)
        self._log_probs += log_probs
        kind = _PART_TYPE[self.items[-1]["type"]]
        lists = {"logprobs": log_probs} if kind == "output_text" else {}
        return self._event(f"response.{kind}.delta", content_index=0, delta=text, **lists)

    def _part(self, text: str, log_probs: Sequence[Record]) -> Record:
        """The content part of the last item."""
        kind = _PART_TYPE[self.items[-1]["type"]]
        lists: Record = {}
        if kind == "output_text":
            lists = {"annotations": [], "logprobs": log_probs}
        return {"type": kind, "text": text, **lists}

    def _item_event(self, kind: str, item: Record) -> StreamEvent:
        return {"type": kind, "output_index": len(self.items) - 1, "item": dict(item)}

    def _event(self, kind: str, **fields: Any) -> StreamEvent:
        """An event about the content of the last item."""
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": kind, **place, **fields}
