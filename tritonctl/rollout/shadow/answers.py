# SPDX-License-Identifier: Apache-2.0
"""Asks one version one question, and reads what it answers."""

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
from tritonctl.rollout.differences import Answer, Labels, Order, Refused, Rows, Text, Vector
from tritonctl.rollout.measures import Timed
from tritonctl.rollout.shadow.questions import Facts, rows_of

_FACTS_SECONDS = 5.0


class Version:
    """A release's server. seconds: for each answer; one that takes longer is none."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self._connection = AsyncConnection(endpoint)
        self._seconds = seconds

    async def close(self) -> None:
        """Hang up."""
        await self._connection.close()

    async def facts(self, model: str) -> Facts:
        """Of a model. Raises what the error map has: RequestRejectedError for an unknown one."""
        ask = self._connection.ask
        metadata = await ask(service_pb2.ModelMetadataRequest(name=model), seconds=_FACTS_SECONDS)
        config = await ask(service_pb2.ModelConfigRequest(name=model), seconds=_FACTS_SECONDS)
        return Facts.of(metadata, config)

    async def configurations(self, model: str) -> dict[str, Config]:
        """Of a model and its steps, by their names. Raises as `facts`."""
        configs: dict[str, Config] = {}
        waiting = [model]
        while waiting:
            name = waiting.pop()
            request = service_pb2.ModelConfigRequest(name=name)
            response = await self._connection.ask(request, seconds=_FACTS_SECONDS)
            configs[name] = MessageToDict(response.config, preserving_proto_field_name=True)
            waiting += [step for step in steps_of(configs[name]) if step not in configs]
        return configs

    async def answer(self, request: Any, facts: Facts) -> Timed:
        """A question's; `Refused` where the version says no, or nothing in time.

        Raises ServerBusyError, ServerError where it could not be asked.
        """
        sent = time.monotonic_ns()
        first: int | None = None
        answer: Answer
        try:
            async with asyncio.timeout(self._seconds):
                if facts.streams:
                    chunks = await self._chunks(request)
                    first = next((c.received_ns for c in chunks if c.num_output_tokens), None)
                    answer = _text(chunks)
                else:
                    rows = rows_of(request, facts)
                    response = await self._connection.ask(request, seconds=None)
                    answer = rows_answer(read_rows(facts.served, response, rows))
        except TimeoutError:
            answer = Refused("no answer in time")
        except RequestRejectedError:
            answer = Refused("refused")
        now = time.monotonic_ns()
        return Timed(answer, None if first is None else (first - sent) / 1e6, (now - sent) / 1e6)

    async def _chunks(self, request: Any) -> list[Chunk]:
        call = self._connection.stream(request, seconds=None)
        found: list[Chunk] = []
        try:
            async for response in call:
                chunk, final = read_chunk(response)
                if chunk is not None:
                    found.append(chunk)
                if final:
                    await await_end_async(call)
                    break
        except grpc.RpcError as error:
            raise self._connection.explained(error) from error
        finally:
            call.cancel()  # without effect on a finished call
        return found


def _text(chunks: Sequence[Chunk]) -> Text:
    return Text(
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.token_ids),
        tuple(value for chunk in chunks for value in chunk.log_probs),
    )


def rows_answer(results: Sequence[Result | TritonctlError]) -> Answer:
    """Of one request: scores of documents together, anything else row by row."""
    scores = [result.score for result in results if isinstance(result, Relevance)]
    if scores and len(scores) == len(results):
        return Order(tuple(scores))
    rows = tuple(_row(result) for result in results)
    return rows[0] if len(rows) == 1 else Rows(rows)


def _row(result: Result | TritonctlError) -> Answer:
    match result:
        case Embedding():
            return Vector(tuple(result.vector.reshape(-1).tolist()))
        case Classification():
            return Labels(result.labels, result.scores)
        case TokenClassification():
            names = [f"{one.label} {one.start}-{one.end}" for one in result.entities]
            return Labels((", ".join(names),), (1.0,))
        case _:
            return Refused("no finite number")
