# SPDX-License-Identifier: Apache-2.0
"""Send one question to one version and read the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from tritonctl.errors import RequestRejectedError, TritonctlError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import AsyncConnection, await_end_async
from tritonctl.protocol.generation import Chunk, read_chunk
from tritonctl.protocol.model_config import Config, steps_of
from tritonctl.protocol.tasks import (
    Classification,
    Embedding,
    Relevance,
    Result,
    TokenClassification,
    read_rows,
)
from tritonctl.rollout.differences import (
    Answer,
    LabelsAnswer,
    RefusedAnswer,
    RowsAnswer,
    ScoresAnswer,
    TextAnswer,
    VectorAnswer,
)
from tritonctl.rollout.measures import TimedAnswer
from tritonctl.rollout.shadow.questions import ServedModelFacts, rows_of

_FACTS_SECONDS = 5.0


class VersionClient:
    """A client of a release's server; an answer that takes longer than `seconds` is refused."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self._connection = AsyncConnection(endpoint)
        self._seconds = seconds

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def model_facts(self, model: str) -> ServedModelFacts:
        """Read the facts of a model. Raises mapped errors: RequestRejectedError if unknown."""
        ask = self._connection.ask
        metadata = await ask(service_pb2.ModelMetadataRequest(name=model), seconds=_FACTS_SECONDS)
        config = await ask(service_pb2.ModelConfigRequest(name=model), seconds=_FACTS_SECONDS)
        return ServedModelFacts.of(metadata, config)

    async def configurations(self, model: str) -> dict[str, Config]:
        """Read the configurations of a model and its steps by name. Raises as `model_facts`."""
        configs: dict[str, Config] = {}
        waiting = [model]
        while waiting:
            name = waiting.pop()
            request = service_pb2.ModelConfigRequest(name=name)
            response = await self._connection.ask(request, seconds=_FACTS_SECONDS)
            configs[name] = MessageToDict(response.config, preserving_proto_field_name=True)
            waiting += [step for step in steps_of(configs[name]) if step not in configs]
        return configs

    async def answer(self, request: Any, facts: ServedModelFacts) -> TimedAnswer:
        """Send a request; `RefusedAnswer` if the version rejects it or takes too long.

        Raises ServerBusyError or ServerError if it cannot be sent.
        """
        sent_ns = time.monotonic_ns()
        first_token_ns: int | None = None
        answer: Answer
        try:
            async with asyncio.timeout(self._seconds):
                if facts.is_streaming:
                    chunks = await self._chunks(request)
                    first_token_ns = next(
                        (c.received_ns for c in chunks if c.num_output_tokens), None
                    )
                    answer = _text(chunks)
                else:
                    rows = rows_of(request, facts)
                    response = await self._connection.ask(request, seconds=None)
                    answer = rows_answer(read_rows(facts.task, response, rows))
        except TimeoutError:
            answer = RefusedAnswer("no answer in time")
        except RequestRejectedError:
            answer = RefusedAnswer("refused")
        finished_ns = time.monotonic_ns()
        return TimedAnswer(
            answer,
            None if first_token_ns is None else (first_token_ns - sent_ns) / 1e6,
            (finished_ns - sent_ns) / 1e6,
        )

    async def _chunks(self, request: Any) -> list[Chunk]:
        call = self._connection.stream(request, seconds=None)
        chunks: list[Chunk] = []
        try:
            async for response in call:
                chunk, final = read_chunk(response)
                if chunk is not None:
                    chunks.append(chunk)
                if final:
                    await await_end_async(call)
                    break
        except grpc.RpcError as error:
            raise self._connection.to_tritonctl_error(error) from error
        finally:
            call.cancel()  # without effect on a finished call
        return chunks


def _text(chunks: Sequence[Chunk]) -> TextAnswer:
    return TextAnswer(
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.token_ids),
        tuple(value for chunk in chunks for value in chunk.log_probs),
    )


def rows_answer(results: Sequence[Result | TritonctlError]) -> Answer:
    """Build the answer of one request: document scores together, other results row by row."""
    scores = [result.score for result in results if isinstance(result, Relevance)]
    if scores and len(scores) == len(results):
        return ScoresAnswer(tuple(scores))
    rows = tuple(_row(result) for result in results)
    return rows[0] if len(rows) == 1 else RowsAnswer(rows)


def _row(result: Result | TritonctlError) -> Answer:
    match result:
        case Embedding():
            return VectorAnswer(tuple(result.vector.reshape(-1).tolist()))
        case Classification():
            return LabelsAnswer(result.labels, result.scores)
        case TokenClassification():
            names = [f"{entity.label} {entity.start}-{entity.end}" for entity in result.entities]
            return LabelsAnswer((", ".join(names),), (1.0,))
        case _:
            return RefusedAnswer("no finite number")
