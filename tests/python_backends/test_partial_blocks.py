# SPDX-License-Identifier: Apache-2.0
"""Which prompts wait for each other where an engine's prefix cache would mix them up."""

from __future__ import annotations

from textlib.engine.partial_blocks import PartialBlocks

BLOCK = 4


def test_prompts_that_go_on_from_an_end_begin_one_by_one() -> None:
    """The second waits until the first has its own blocks; one that begins otherwise does not."""
    blocks = PartialBlocks(BLOCK, max_ends=8)
    blocks.record_end([1, 2])
    assert blocks.try_claim(1, [1, 2, 3])
    assert not blocks.try_claim(2, [1, 2, 4, 5, 6])
    assert blocks.try_claim(3, [1, 3, 2])
    assert not blocks.try_claim(2, [1, 2, 4, 5, 6])
    blocks.release_claim(1)
    assert blocks.try_claim(2, [1, 2, 4, 5, 6])


def test_the_same_prompt_as_the_end_waits_too() -> None:
    """It goes on from there with its first token."""
    blocks = PartialBlocks(BLOCK, max_ends=8)
    blocks.record_end([1, 2, 3, 4, 5])
    assert blocks.try_claim(1, [1, 2, 3, 4, 5])
    assert not blocks.try_claim(2, [1, 2, 3, 4, 5])


def test_full_blocks_are_shared_as_they_are_meant_to_be() -> None:
    """Nobody writes into them."""
    blocks = PartialBlocks(BLOCK, max_ends=8)
    blocks.record_end([1, 2, 3, 4])
    blocks.record_end([])
    assert all(blocks.try_claim(stream, [1, 2, 3, 4, 5]) for stream in range(3))


def test_one_end_within_another() -> None:
    """A prompt that could go on from either keeps both."""
    blocks = PartialBlocks(BLOCK, max_ends=8)
    for end in ([1], [1, 2]):
        blocks.record_end(end)
    assert blocks.try_claim(1, [1, 2, 3])
    assert not blocks.try_claim(2, [1, 5])


def test_only_the_latest_ends_count() -> None:
    """As many as the cache has blocks; what came again is new."""
    blocks = PartialBlocks(BLOCK, max_ends=2)
    for end in (1, 2, 1, 3):
        blocks.record_end([end])
    assert [blocks.try_claim(10 + n, [n, 9]) for n in (1, 2, 3)] == [True] * 3
    assert [blocks.try_claim(20 + n, [n, 9]) for n in (1, 2, 3)] == [False, True, False]
