# SPDX-License-Identifier: Apache-2.0
"""The error of one item of a request: the tensor, the item's index, the reason."""

from textlib.errors import RequestError


class ItemError(RequestError):
    """`text_input[3] is not valid UTF-8 ...`; without an index for a single item."""

    def __init__(self, tensor: str, problem: str, index: int | None = None) -> None:
        path = tensor if index is None else f"{tensor}[{index}]"
        super().__init__(f"{path} {problem}")
        self.tensor = tensor
        self.problem = problem

    def with_index(self, index: int) -> "ItemError":
        """Return the error with the item's index in its request."""
        return ItemError(self.tensor, self.problem, index)
