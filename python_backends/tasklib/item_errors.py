# SPDX-License-Identifier: Apache-2.0
"""What is wrong with one item of a request: the tensor, the item's index, the reason."""

from textlib.errors import RequestError


class ItemError(RequestError):
    """`text_input[3] is not valid UTF-8 ...`; without an index, of an item that is alone."""

    def __init__(self, tensor: str, problem: str, index: int | None = None) -> None:
        place = tensor if index is None else f"{tensor}[{index}]"
        super().__init__(f"{place} {problem}")
        self.tensor = tensor
        self.problem = problem

    def at(self, index: int) -> "ItemError":
        """The same for the item at this index of its request."""
        return ItemError(self.tensor, self.problem, index)
