# SPDX-License-Identifier: Apache-2.0
"""Client methods for encoders, classifiers and rerankers, with any number of items per call.

    with TritonClient("127.0.0.1:8001") as client:
        vectors = [embedding.vector for embedding in client.embed("encoder", texts)]

Requests contain as many rows as the model takes; several are in flight. The client retries on a
busy or restarting server, with pauses, for `retry_seconds`. It imports NumPy at the first call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonctl.errors import HostError, UsageError
from tritonctl.protocol.connection import AsyncConnection, Connection
from tritonctl.protocol.delivery import DEFAULT_DELIVERY, Delivery

if TYPE_CHECKING:
    from tritonctl.protocol.batches import Batches
    from tritonctl.protocol.tasks import (
        Classification,
        Embedding,
        Relevance,
        ServedTask,
        TaskRow,
        TokenClassification,
    )

Image = bytes | str | Path


@dataclass(frozen=True)
class _Call:
    """A call with items for a model."""

    model: str
    task: str
    items: Sequence[dict[str, bytes]]  # BYTES inputs by name
    delivery: Delivery
    options: dict[str, Any]

    def prepare(self, served_task: ServedTask) -> tuple[Batches, list[TaskRow]]:
        """Build batches and rows. Raises UsageError for another task or an unknown option."""
        from tritonctl.protocol.batches import Batches
        from tritonctl.protocol.tasks import RowOptions, TaskRow, refuse_other_task

        options = RowOptions(**self.options)
        inputs = {*options.tensors(), *(name for item in self.items for name in item)}
        refuse_other_task(served_task, (self.task,), inputs)
        return Batches(served_task, options, self.delivery), [TaskRow(item) for item in self.items]


def _embed(model: str, texts: Sequence[str], delivery: Delivery, **options: Any) -> _Call:
    return _Call(model, "embedding", _texts(texts), delivery, options)


def _classify(
    model: str,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    delivery: Delivery,
    **options: Any,
) -> _Call:
    items = _texts(texts)
    if pairs is not None:
        if len(pairs) != len(texts):
            raise UsageError(
                f"{len(texts)} texts have {len(pairs)} text_pairs",
                remedy="give one for each text, or none",
            )
        items = [
            item | {"text_pair": pair.encode("utf-8", "surrogatepass")}
            for item, pair in zip(items, pairs, strict=True)
        ]
    return _Call(model, "classification", items, delivery, options)


def _images(
    model: str, task: str, images: Sequence[Image], delivery: Delivery, **options: Any
) -> _Call:
    return _Call(model, task, [{"image": _file(image)} for image in images], delivery, options)


def _rerank(
    model: str, query: str, texts: Sequence[str], delivery: Delivery, **options: Any
) -> _Call:
    query_bytes = query.encode("utf-8", "surrogatepass")
    items = [{"query": query_bytes, **item} for item in _texts(texts)]
    return _Call(model, "rerank", items, delivery, options)


def _texts(texts: Sequence[str]) -> list[dict[str, bytes]]:
    if isinstance(texts, str):
        raise UsageError("expected a list of texts, got one text", remedy="write [text]")
    return [{"text_input": text.encode("utf-8", "surrogatepass")} for text in texts]


def _file(image: Image) -> bytes:
    """Return an encoded image unchanged, or read its file. Raises HostError."""
    if isinstance(image, bytes):
        return image
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise HostError(
            f"{image} cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error


def _best_first(relevances: Sequence[Relevance]) -> list[Relevance]:
    indexed = [replace(relevance, index=index) for index, relevance in enumerate(relevances)]
    return sorted(indexed, key=lambda relevance: -relevance.rank)


class TaskCalls(ABC):
    """Task methods of the synchronous client.

    Each call raises UsageError for a model of another task, ItemsRejectedError, which contains the
    other results, for items that the model refuses, ServerError without an answer.
    """

    _served_tasks: dict[str, ServedTask]

    @abstractmethod
    def _task_connection(self) -> Connection: ...

    def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Embedding]:
        """Return a vector for each text, in their order.

        `prompt_name`: one of the model's prompts, such as "query", put before each text.
        `dimensions`: length of the vectors, for models trained for it. `truncate=False`: refuse
        texts that are too long instead of truncating them.
        """
        options = {"prompt_name": prompt_name, "dimensions": dimensions, "truncate": truncate}
        return self._answers(_embed(model, texts, delivery, **options))

    def embed_images(
        self, model: str, images: Sequence[Image], *, delivery: Delivery = DEFAULT_DELIVERY
    ) -> list[Embedding]:
        """Return a vector for each image: a path, or the bytes of an encoded file."""
        return self._answers(_images(model, "image_embedding", images, delivery))

    def classify(
        self,
        model: str,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        top_k: int | None = None,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Classification]:
        """Return labels and scores for each text or pair, best first; `top_k`: how many."""
        return self._answers(
            _classify(model, texts, text_pairs, delivery, top_k=top_k, truncate=truncate)
        )

    def classify_images(
        self,
        model: str,
        images: Sequence[Image],
        *,
        top_k: int | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Classification]:
        """Return labels and scores for each image: a path, or the bytes of an encoded file."""
        return self._answers(_images(model, "image_classification", images, delivery, top_k=top_k))

    def classify_tokens(
        self,
        model: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[TokenClassification]:
        """Return the entities in each text."""
        call = _Call(model, "token_classification", _texts(texts), delivery, {"truncate": truncate})
        return self._answers(call)

    def rerank(
        self,
        model: str,
        query: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Relevance]:
        """Return the relevance of each text to the query, best first; `index`: the text's."""
        return _best_first(self._answers(_rerank(model, query, texts, delivery, truncate=truncate)))

    def _answers(self, call: _Call) -> list[Any]:
        from tritonctl.protocol.row_calls import ask, describe_task

        connection = self._task_connection()
        served_task = self._served_tasks.get(call.model) or describe_task(connection, call.model)
        batches, rows = call.prepare(served_task)
        try:
            answers = ask(connection, batches, rows)
        except BaseException:
            # The model may have been replaced.
            self._served_tasks.pop(call.model, None)
            raise
        self._served_tasks[call.model] = served_task
        return answers


class AsyncTaskCalls(ABC):
    """Task methods of the asyncio client; as `TaskCalls`."""

    _served_tasks: dict[str, ServedTask]

    @abstractmethod
    def _task_connection(self) -> AsyncConnection: ...

    async def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Embedding]:
        """As `TritonClient.embed`."""
        options = {"prompt_name": prompt_name, "dimensions": dimensions, "truncate": truncate}
        return await self._answers(_embed(model, texts, delivery, **options))

    async def embed_images(
        self, model: str, images: Sequence[Image], *, delivery: Delivery = DEFAULT_DELIVERY
    ) -> list[Embedding]:
        """As `TritonClient.embed_images`."""
        return await self._answers(_images(model, "image_embedding", images, delivery))

    async def classify(
        self,
        model: str,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        top_k: int | None = None,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Classification]:
        """As `TritonClient.classify`."""
        return await self._answers(
            _classify(model, texts, text_pairs, delivery, top_k=top_k, truncate=truncate)
        )

    async def classify_images(
        self,
        model: str,
        images: Sequence[Image],
        *,
        top_k: int | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Classification]:
        """As `TritonClient.classify_images`."""
        call = _images(model, "image_classification", images, delivery, top_k=top_k)
        return await self._answers(call)

    async def classify_tokens(
        self,
        model: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[TokenClassification]:
        """As `TritonClient.classify_tokens`."""
        call = _Call(model, "token_classification", _texts(texts), delivery, {"truncate": truncate})
        return await self._answers(call)

    async def rerank(
        self,
        model: str,
        query: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        delivery: Delivery = DEFAULT_DELIVERY,
    ) -> list[Relevance]:
        """As `TritonClient.rerank`."""
        call = _rerank(model, query, texts, delivery, truncate=truncate)
        return _best_first(await self._answers(call))

    async def describe_task(self, model: str) -> ServedTask:
        """Return a deployed model's task.

        Raises RequestRejectedError for an unknown name, ServerError without an answer.
        """
        from tritonctl.protocol.row_calls import describe_task_async

        return await describe_task_async(self._task_connection(), model)

    async def _answers(self, call: _Call) -> list[Any]:
        from tritonctl.protocol.row_calls import ask_async

        connection = self._task_connection()
        served_task = self._served_tasks.get(call.model) or await self.describe_task(call.model)
        batches, rows = call.prepare(served_task)
        try:
            answers = await ask_async(connection, batches, rows)
        except BaseException:
            self._served_tasks.pop(call.model, None)
            raise
        self._served_tasks[call.model] = served_task
        return answers
