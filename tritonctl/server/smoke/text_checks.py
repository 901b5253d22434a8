# SPDX-License-Identifier: Apache-2.0
"""Checks of models that take and give text: our ensembles, NVIDIA's, any with the same names.

Ours also return token counts, ids and a finish reason. Where a model does not, a check is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tritonctl.protocol.tensors import infer_response
from tritonctl.repository.ensembles import step_model_name
from tritonctl.repository.unary import UNARY
from tritonctl.server.smoke.answers import failure_of, faults
from tritonctl.server.smoke.inputs import text_inputs
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.stream_checks import ending
from tritonctl.server.smoke.subject import Request, Subject

TOKENS = 16
# Not asked for: log probabilities cost the engine something.
_COSTLY = ("cum_log_probs", "output_log_probs", "context_logits", "generation_logits")

_NO_UNARY = (
    "Triton refuses ModelInfer and HTTP infer for a model that streams; `serving.unary: true` adds "
    "one that takes them"
)

# Token ids to text, as the checkpoint's tokenizer does it.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Part:
    """One response of a stream of text; None for what the model does not return."""

    text: bytes
    tokens: int | None
    ids: tuple[int, ...] | None
    finish_reason: str | None


def text_checks(subject: Subject, prompt: str, decode: Decode | str) -> Iterator[Outcome]:
    """Whether a prompt is answered in order and whole, with the text of its tokens.

    decode: a str says why the tokenizer is unknown.
    """
    request = text_request(subject, prompt, TOKENS)
    [answer] = subject.client.ask(request.message, stream=subject.decoupled)
    if subject.decoupled:
        yield from ending(subject, request, answer)
    elif wrong := failure_of(answer, subject.client.seconds):
        yield subject.failed("answers", wrong, request)
    else:
        yield subject.passed("answers", "one response")
    if answer.error:
        return
    wrong_outputs = faults(subject.config, answer.responses, batch=1, names=("text_output",))
    yield subject.judged("outputs", wrong_outputs, "types and shapes as declared", request)
    if wrong_outputs:
        return
    parts = [_part(response) for response in answer.responses]
    if subject.decoupled:
        yield _order(subject, parts, request)
        yield _in_one_piece(subject, prompt, parts, request)
        if step_model_name(subject.name, UNARY) not in subject.configs:
            yield subject.skipped("unary", _NO_UNARY)
    yield _tokenizer(subject, parts, decode, request)


def text_request(subject: Subject, prompt: str, tokens: int, **values: Any) -> Request:
    """A greedy request for at most `tokens` tokens, streamed where the model can."""
    inputs = {"max_tokens": tokens, "stream": subject.decoupled, **values}
    outputs = tuple(
        output["name"]
        for output in subject.config.get("output", ())
        if output["name"] not in _COSTLY
    )
    return subject.request(text_inputs(subject.config, prompt, **inputs), outputs=outputs)


def _part(response: Any) -> Part:
    arrays = infer_response(response)
    counts = arrays.get("num_output_tokens")
    reasons = arrays.get("finish_reason")
    # NVIDIA's ensembles have another meaning of output_ids.
    ids = arrays.get("output_ids") if counts is not None else None
    return Part(
        text=b"".join(arrays["text_output"].reshape(-1)),
        tokens=None if counts is None else int(counts.reshape(-1)[-1]),
        ids=None if ids is None else tuple(int(each) for each in ids.reshape(-1)),
        finish_reason=None if reasons is None else reasons.reshape(-1)[-1].decode(),
    )


def order_faults(parts: Sequence[Part]) -> list[str] | None:
    """What is wrong with the counts of a stream; None where the model returns none."""
    counts = [part.tokens for part in parts if part.tokens is not None]
    if len(counts) != len(parts) or not parts:
        return None
    wrong = []
    if any(later < earlier for earlier, later in pairwise(counts)):
        wrong.append(f"num_output_tokens goes {', '.join(map(str, counts))}")
    elif lost := _lost(parts):
        wrong.append(lost)
    reasons = [part.finish_reason for part in parts if part.finish_reason is not None]
    if reasons and (any(reasons[:-1]) or not reasons[-1]):
        wrong.append(f"finish_reason goes {', '.join(repr(reason) for reason in reasons)}")
    return wrong


def _lost(parts: Sequence[Part]) -> str:
    """Ids come with the response that first counts them."""
    if any(part.ids is None for part in parts):
        return ""
    received = sum(len(part.ids or ()) for part in parts)
    counted = parts[-1].tokens
    return f"{counted} tokens are counted and {received} came" if received != counted else ""


def _order(subject: Subject, parts: Sequence[Part], request: Request) -> Outcome:
    wrong = order_faults(parts)
    if wrong is None:
        return subject.skipped("order", "it does not count its tokens (no num_output_tokens)")
    right = f"{parts[-1].tokens} tokens in {len(parts)} responses, counted up"
    return subject.judged("order", wrong, right, request)


def _in_one_piece(
    subject: Subject, prompt: str, parts: Sequence[Part], streamed: Request
) -> Outcome:
    if all(tensor["name"] != "stream" for tensor in subject.config.get("input", ())):
        return subject.skipped("in one piece", "it has no input `stream`")
    request = text_request(subject, prompt, TOKENS, stream=False)
    [answer] = subject.client.ask(request.message, stream=True)
    if wrong := failure_of(answer, subject.client.seconds):
        return subject.failed("in one piece", f"with stream=false: {wrong}", request)
    whole = b"".join(_part(response).text for response in answer.responses)
    text = b"".join(part.text for part in parts)
    if text != whole:
        [again] = subject.client.ask(streamed.message, stream=True)
        if b"".join(_part(response).text for response in again.responses) != text:
            return subject.skipped("in one piece", "it answers differently when asked again")
        detail = f"streamed {_quoted(text)}, with stream=false {_quoted(whole)}"
        return subject.failed("in one piece", detail, streamed)
    return subject.passed("in one piece", f"the same text with stream=false: {_quoted(text)}")


def _tokenizer(
    subject: Subject, parts: Sequence[Part], decode: Decode | str, request: Request
) -> Outcome:
    if isinstance(decode, str):
        return subject.skipped("tokenizer", decode)
    if any(part.ids is None for part in parts):
        return subject.skipped("tokenizer", "it does not return its tokens (no output_ids)")
    ids = [each for part in parts for each in part.ids or ()]
    expected = decode(ids)
    text = b"".join(part.text for part in parts).decode("utf-8", "replace")
    if text != expected:
        detail = f"{ids} came as {text!r}, and the checkpoint's tokenizer says {expected!r}"
        return subject.failed("tokenizer", detail, request)
    return subject.passed("tokenizer", f"{len(ids)} ids decode to the text that came")


def _quoted(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
