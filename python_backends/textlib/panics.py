# SPDX-License-Identifier: Apache-2.0
"""Panics of Rust libraries as ordinary exceptions.

PyO3 raises a panic as `pyo3_runtime.PanicException`, a BaseException that no module exports. Past
every `except Exception` it would leave `execute`, and Triton would fail the whole batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_PANIC = "PanicException"


class LibraryPanicError(Exception):
    """A Rust library panicked; the message is the panic's."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise LibraryPanicError for a panic in the block; other exceptions pass."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise LibraryPanicError(str(error)) from error
