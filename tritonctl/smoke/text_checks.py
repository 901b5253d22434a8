# SPDX-License-Identifier: Apache-2.0
"""Checks of text models: tritonctl's and NVIDIA's ensembles, or any with the same tensor names.

tritonctl's models also return token counts, ids and a finish reason. Without them a check is
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tritonctl.protocol.tensors import infer_response
from tritonctl.repository.ensembles import step_model_name
from tritonctl.repository.unary import UNARY
from tritonctl.smoke.answer_checks import answer_failure, output_faults
from tritonctl.smoke.inputs import text_inputs
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.stream_checks import final_response_checks

TOKENS = 16
# Not requested: log probabilities are expensive.
_COSTLY_OUTPUTS = ("cum_log_probs", "output_log_probs", "context_logits", "generation_logits")

_NO_UNARY = (
    "Triton rejects ModelInfer and HTTP infer for a streaming model; `serving.unary: true` adds a "
    "model that accepts them"
)

# Token ids to text with the checkpoint's tokenizer.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class TextChunk:
    """One response of a text stream; None for fields that the model does not return."""

    text: bytes
    tokens: int | None
    ids: tuple[int, ...] | None
    finish_reason: str | None


def text_checks(
    subject: ModelUnderTest, prompt: str, decode: Decode | str
) -> Iterator[SmokeOutcome]:
    """Check that the answer to a prompt is ordered, complete and matches its tokens.

    decode: a str gives the reason why the tokenizer is unknown.
    """
    request = text_request(subject, prompt, TOKENS)
    [answer] = subject.client.send_all(request.message, stream=subject.decoupled)
    if subject.decoupled:
        yield from final_response_checks(subject, request, answer)
    elif wrong := answer_failure(answer, subject.client.seconds):
        yield subject.fail_outcome("answers", wrong, request)
    else:
        yield subject.pass_outcome("answers", "one response")
    if answer.error:
        return
    wrong_outputs = output_faults(subject.config, answer.responses, batch=1, names=("text_output",))
    yield subject.verdict_outcome("outputs", wrong_outputs, "types and shapes as declared", request)
    if wrong_outputs:
        return
    parts = [_text_chunk(response) for response in answer.responses]
    if subject.decoupled:
        yield _order_check(subject, parts, request)
        yield _unstreamed_check(subject, prompt, parts, request)
        if step_model_name(subject.name, UNARY) not in subject.configs:
            yield subject.skip_outcome("unary", _NO_UNARY)
    yield _tokenizer_check(subject, parts, decode, request)


def text_request(subject: ModelUnderTest, prompt: str, tokens: int, **values: Any) -> SmokeRequest:
    """Create a greedy request for at most `tokens` tokens, streamed if the model supports it."""
    inputs = {"max_tokens": tokens, "stream": subject.decoupled, **values}
    outputs = tuple(
        output["name"]
        for output in subject.config.get("output", ())
        if output["name"] not in _COSTLY_OUTPUTS
    )
    return subject.request(text_inputs(subject.config, prompt, **inputs), outputs=outputs)


def _text_chunk(response: Any) -> TextChunk:
    arrays = infer_response(response)
    counts = arrays.get("num_output_tokens")
    reasons = arrays.get("finish_reason")
    # In NVIDIA's ensembles output_ids has another meaning.
    ids = arrays.get("output_ids") if counts is not None else None
    return TextChunk(
        text=b"".join(arrays["text_output"].reshape(-1)),
        tokens=None if counts is None else int(counts.reshape(-1)[-1]),
        ids=None if ids is None else tuple(int(each) for each in ids.reshape(-1)),
        finish_reason=None if reasons is None else reasons.reshape(-1)[-1].decode(),
    )


def order_faults(parts: Sequence[TextChunk]) -> list[str] | None:
    """Return the problems with a stream's token counts; None if the model returns no counts."""
    counts = [part.tokens for part in parts if part.tokens is not None]
    if len(counts) != len(parts) or not parts:
        return None
    wrong = []
    if any(later < earlier for earlier, later in pairwise(counts)):
        wrong.append(f"num_output_tokens goes {', '.join(map(str, counts))}")
    elif lost := _lost_tokens(parts):
        wrong.append(lost)
    reasons = [part.finish_reason for part in parts if part.finish_reason is not None]
    if reasons and (any(reasons[:-1]) or not reasons[-1]):
        wrong.append(f"finish_reason goes {', '.join(repr(reason) for reason in reasons)}")
    return wrong


def _lost_tokens(parts: Sequence[TextChunk]) -> str:
    """Compare received with counted ids, which come with the response that first counts them."""
    if any(part.ids is None for part in parts):
        return ""
    received = sum(len(part.ids or ()) for part in parts)
    counted = parts[-1].tokens
    return f"{counted} tokens are counted but {received} arrived" if received != counted else ""


def _order_check(
    subject: ModelUnderTest, parts: Sequence[TextChunk], request: SmokeRequest
) -> SmokeOutcome:
    wrong = order_faults(parts)
    if wrong is None:
        return subject.skip_outcome("order", "it does not count its tokens (no num_output_tokens)")
    right = f"{parts[-1].tokens} tokens in {len(parts)} responses, counted up"
    return subject.verdict_outcome("order", wrong, right, request)


def _unstreamed_check(
    subject: ModelUnderTest, prompt: str, parts: Sequence[TextChunk], streamed: SmokeRequest
) -> SmokeOutcome:
    if all(tensor["name"] != "stream" for tensor in subject.config.get("input", ())):
        return subject.skip_outcome("in one piece", "it has no input `stream`")
    request = text_request(subject, prompt, TOKENS, stream=False)
    [answer] = subject.client.send_all(request.message, stream=True)
    if wrong := answer_failure(answer, subject.client.seconds):
        return subject.fail_outcome("in one piece", f"with stream=false: {wrong}", request)
    unstreamed = b"".join(_text_chunk(response).text for response in answer.responses)
    text = b"".join(part.text for part in parts)
    if text != unstreamed:
        [repeated] = subject.client.send_all(streamed.message, stream=True)
        if b"".join(_text_chunk(response).text for response in repeated.responses) != text:
            return subject.skip_outcome("in one piece", "it answers differently when repeated")
        detail = f"streamed {_quote(text)}, with stream=false {_quote(unstreamed)}"
        return subject.fail_outcome("in one piece", detail, streamed)
    return subject.pass_outcome("in one piece", f"the same text with stream=false: {_quote(text)}")


def _tokenizer_check(
    subject: ModelUnderTest, parts: Sequence[TextChunk], decode: Decode | str, request: SmokeRequest
) -> SmokeOutcome:
    if isinstance(decode, str):
        return subject.skip_outcome("tokenizer", decode)
    if any(part.ids is None for part in parts):
        return subject.skip_outcome("tokenizer", "it does not return its tokens (no output_ids)")
    ids = [each for part in parts for each in part.ids or ()]
    expected = decode(ids)
    text = b"".join(part.text for part in parts).decode("utf-8", "replace")
    if text != expected:
        detail = f"{ids} arrived as {text!r}, but the checkpoint's tokenizer decodes {expected!r}"
        return subject.fail_outcome("tokenizer", detail, request)
    return subject.pass_outcome("tokenizer", f"{len(ids)} ids decode to the received text")


def _quote(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
