# SPDX-License-Identifier: Apache-2.0
"""What both clients offer for encoders, classifiers and rerankers: any number of items a call.

    with TritonClient("127.0.0.1:8001") as client:
        vectors = [one.vector for one in client.embed("encoder", texts)]

Items go out in requests of as many rows as the model takes, several in flight. A busy or restarting
server is asked again, with pauses, for `retry_seconds`. NumPy is imported at the first call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonctl.errors import HostError, UsageError
from tritonctl.protocol.connection import AsyncConnection, Connection
from tritonctl.protocol.delivery import USUAL, Delivery

if TYPE_CHECKING:
    from tritonctl.protocol.batches import Batches
    from tritonctl.protocol.tasks import (
        Classification,
        Embedding,
        Relevance,
        Row,
        ServedTask,
        TokenClassification,
    )

Image = bytes | str | Path


@dataclass(frozen=True)
class _Call:
    """Items for a model of one of these tasks, each as BYTES inputs by name."""

    model: str
    task: str
    items: Sequence[dict[str, bytes]]
    delivery: Delivery
    options: dict[str, Any]

    def prepared(self, served: ServedTask) -> tuple[Batches, list[Row]]:
        """Raises UsageError where the model is of another task, or has no such option."""
        from tritonctl.protocol.batches import Batches
        from tritonctl.protocol.tasks import Row, RowOptions, refuse_other_task

        options = RowOptions(**self.options)
        inputs = {*options.tensors(), *(name for item in self.items for name in item)}
        refuse_other_task(served, (self.task,), inputs)
        return Batches(served, options, self.delivery), [Row(item) for item in self.items]


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
    asked = query.encode("utf-8", "surrogatepass")
    items = [{"query": asked, **item} for item in _texts(texts)]
    return _Call(model, "rerank", items, delivery, options)


def _texts(texts: Sequence[str]) -> list[dict[str, bytes]]:
    if isinstance(texts, str):
        raise UsageError("one text is given where a list is expected", remedy="write [text]")
    return [{"text_input": text.encode("utf-8", "surrogatepass")} for text in texts]


def _file(image: Image) -> bytes:
    """An encoded image as it is, or the file's content. Raises HostError."""
    if isinstance(image, bytes):
        return image
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise HostError(
            f"{image} cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error


def _best_first(given: Sequence[Relevance]) -> list[Relevance]:
    found = [replace(one, index=index) for index, one in enumerate(given)]
    return sorted(found, key=lambda one: -one.score)


class TaskCalls(ABC):
    """Of the synchronous client.

    Each call raises UsageError for a model of another task, ItemsRejectedError, which has the
    results of the others, for items that the model refuses, ServerError without an answer.
    """

    _served: dict[str, ServedTask]

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
        delivery: Delivery = USUAL,
    ) -> list[Embedding]:
        """A vector for each text, in their order.

        `prompt_name`: a prompt of the model's, such as "query", that goes before each text.
        `dimensions`: the vectors are cut to so many, for models that are trained for it.
        `truncate=False`: texts that are too long are refused instead of cut.
        """
        options = {"prompt_name": prompt_name, "dimensions": dimensions, "truncate": truncate}
        return self._answers(_embed(model, texts, delivery, **options))

    def embed_images(
        self, model: str, images: Sequence[Image], *, delivery: Delivery = USUAL
    ) -> list[Embedding]:
        """A vector for each image: a path, or the bytes of an encoded file."""
        return self._answers(_images(model, "image_embedding", images, delivery))

    def classify(
        self,
        model: str,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        top_k: int | None = None,
        truncate: bool | None = None,
        delivery: Delivery = USUAL,
    ) -> list[Classification]:
        """Labels and scores for each text, or pair of texts, best first; `top_k`: so many."""
        return self._answers(
            _classify(model, texts, text_pairs, delivery, top_k=top_k, truncate=truncate)
        )

    def classify_images(
        self,
        model: str,
        images: Sequence[Image],
        *,
        top_k: int | None = None,
        delivery: Delivery = USUAL,
    ) -> list[Classification]:
        """Labels and scores for each image: a path, or the bytes of an encoded file."""
        return self._answers(_images(model, "image_classification", images, delivery, top_k=top_k))

    def classify_tokens(
        self,
        model: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        delivery: Delivery = USUAL,
    ) -> list[TokenClassification]:
        """The entities in each text."""
        call = _Call(model, "token_classification", _texts(texts), delivery, {"truncate": truncate})
        return self._answers(call)

    def rerank(
        self,
        model: str,
        query: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        delivery: Delivery = USUAL,
    ) -> list[Relevance]:
        """How well each text answers the query, best first; `index` says which text it is."""
        return _best_first(self._answers(_rerank(model, query, texts, delivery, truncate=truncate)))

    def _answers(self, call: _Call) -> list[Any]:
        from tritonctl.protocol.row_calls import ask, served_task

        connection = self._task_connection()
        served = self._served.get(call.model) or served_task(connection, call.model)
        batches, rows = call.prepared(served)
        try:
            answers = ask(connection, batches, rows)
        except BaseException:
            # It may be another model by now.
            self._served.pop(call.model, None)
            raise
        self._served[call.model] = served
        return answers


class AsyncTaskCalls(ABC):
    """Of the client for asyncio: as `TaskCalls`."""

    _served: dict[str, ServedTask]

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
        delivery: Delivery = USUAL,
    ) -> list[Embedding]:
        """As `TritonClient.embed`."""
        options = {"prompt_name": prompt_name, "dimensions": dimensions, "truncate": truncate}
        return await self._answers(_embed(model, texts, delivery, **options))

    async def embed_images(
        self, model: str, images: Sequence[Image], *, delivery: Delivery = USUAL
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
        delivery: Delivery = USUAL,
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
        delivery: Delivery = USUAL,
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
        delivery: Delivery = USUAL,
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
        delivery: Delivery = USUAL,
    ) -> list[Relevance]:
        """As `TritonClient.rerank`."""
        call = _rerank(model, query, texts, delivery, truncate=truncate)
        return _best_first(await self._answers(call))

    async def described(self, model: str) -> ServedTask:
        """What a model is served for.

        Raises RequestRejectedError where there is none of that name, ServerError without an answer.
        """
        from tritonctl.protocol.row_calls import served_task_async

        return await served_task_async(self._task_connection(), model)

    async def _answers(self, call: _Call) -> list[Any]:
        from tritonctl.protocol.row_calls import ask_async

        connection = self._task_connection()
        served = self._served.get(call.model) or await self.described(call.model)
        batches, rows = call.prepared(served)
        try:
            answers = await ask_async(connection, batches, rows)
        except BaseException:
            self._served.pop(call.model, None)
            raise
        self._served[call.model] = served
        return answers
