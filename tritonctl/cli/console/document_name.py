# SPDX-License-Identifier: Apache-2.0
"""The schema names of JSON documents: `tritonctl.loadtest.run/1` for `loadtest run --json`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ERROR_DOCUMENT = "tritonctl.error/1"
_VERSION = 1  # of all documents so far: a removed or renamed field makes it 2
_NAME: ContextVar[str] = ContextVar("document_name")


def document_name(verb: str) -> str:
    """Return the schema name of a verb's documents, such as of `loadtest run`."""
    return f"tritonctl.{verb.replace(' ', '.')}/{_VERSION}"


def current_document_name() -> str:
    """Return the schema name for the running verb. Raises LookupError outside of a verb."""
    return _NAME.get()


@contextmanager
def naming_documents(verb: str) -> Iterator[None]:
    """Name the documents after the verb that runs in the context."""
    token = _NAME.set(document_name(verb))
    try:
        yield
    finally:
        _NAME.reset(token)
