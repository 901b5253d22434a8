# SPDX-License-Identifier: Apache-2.0
"""Checks a project's pooling against the checkpoint's modules.json. Standard library only."""

from pathlib import Path

from buildlib.problems import BuildError
from taskcompile.sentence_modules import MODULES, has_modules, read_modules
from taskcompile.task import Dense, Pooling

_TASK = "`task: embedding`, which follows modules.json."
_WITHOUT = (
    "Or remove pooling from engine.options: the graph then returns last_hidden_state, and you make "
    "the vectors from it."
)


def refuse_other_pooling(
    folder: Path, pooling: str, hidden_size: int, *, allow_pickle: bool
) -> None:
    """Check that vectors of this pooling have the same direction as the checkpoint's.

    Their length (`normalize`) is the project's choice: it does not change the order by cosine.
    `hidden_size`: values of a token's state.

    Raises:
        BuildError: modules.json pools otherwise, changes the vector after pooling, or has an
            unknown setting.
    """
    if not has_modules(folder):
        return
    file = folder / MODULES
    try:
        steps = read_modules(folder, hidden_size, allow_pickle=allow_pickle)
    except BuildError as error:
        raise BuildError(error.problem, remedy=f"{error.remedy} {_WITHOUT}") from error
    modes = next(step.modes for step in steps if isinstance(step, Pooling))
    if modes != (pooling,):
        suggestion = f"engine.options.pooling to {modes[0]}, or set " if len(modes) == 1 else ""
        raise BuildError(
            f"engine.options.pooling is {pooling}, and {file} pools by {', '.join(modes)}: a "
            "vector of another pooling finds the wrong texts, and nothing fails",
            remedy=f"Set {suggestion}{_TASK} {_WITHOUT}",
        )
    if any(isinstance(step, Dense) for step in steps):
        raise BuildError(
            f"engine.options.pooling is {pooling}, and {file} has a Dense behind its pooling, "
            "which the task tensors leaves out: the vectors would differ",
            remedy=f"Set {_TASK} {_WITHOUT}",
        )
