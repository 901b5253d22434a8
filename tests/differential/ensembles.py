# SPDX-License-Identifier: Apache-2.0
"""Random ensembles over the pool's models, and what can be done to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.differential.drafts import DTYPES, MAIN, Draft, Draw, Touch, dims, pick, tensor
from tests.differential.pool import POOL
from tritonctl.checks.config.schema import model_config_schema

_BATCHED = tuple(name for name, kept in POOL.items() if kept.batch == 8)
_PLAIN = tuple(name for name, kept in POOL.items() if kept.batch == 0)
Spec = tuple[str, tuple[int, ...]]
_ANY_NAME = ("X", "Y", "IN0", "IN1", "step0_Y", "step1_Y", "step2_Y", "nothing", "")


def ensemble(draw: Draw, name: str = MAIN) -> Draft:
    """One to three steps, each input from a tensor like it that there is, or from the client."""
    models = _BATCHED if draw(st.integers(0, 3)) else _PLAIN
    config = model_config_schema().ModelConfig(name=name, platform="ensemble")
    config.max_batch_size = POOL[models[0]].batch
    there: dict[str, Spec] = {}
    unread: list[str] = []
    for number in range(draw(st.integers(1, 3))):
        model = pick(draw, *models)
        step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
        for key, dtype, shape in POOL[model].inputs:
            if key in POOL[model].optional and draw(st.booleans()):
                continue
            loosely = draw(st.integers(0, 3)) == 0
            fits = [n for n, spec in there.items() if _fits(spec, (dtype, shape), loosely)]
            source = pick(draw, *fits) if fits and draw(st.integers(0, 4)) else None
            if source is None:
                source = f"IN{len(config.input)}"
                config.input.add(**tensor(source, dtype, list(shape)))
                there[source] = (dtype, shape)
            step.input_map[key] = source
            unread = [n for n in unread if n != source]
        for key, dtype, shape in POOL[model].outputs:
            target = f"step{number}_{key}"
            step.output_map[key] = target
            there[target] = (dtype, shape)
            unread.append(target)
    for target in unread:
        dtype, shape = there[target]
        config.output.add(**tensor(target, dtype, list(shape)))
    return Draft(config, {"1/keep": ""})


def _fits(one: Spec, other: Spec, loosely: bool) -> bool:
    """Whether one tensor can be the other, for certain, or if its variable dimensions agree."""
    if one == other or one[0] != other[0] or len(one[1]) != len(other[1]):
        return one == other
    pairs = zip(one[1], other[1], strict=True)
    return loosely and all(a == b or -1 in (a, b) for a, b in pairs)


def a_step(draw: Draw, draft: Draft) -> Any:
    """One of its steps; another touch may have taken them all."""
    steps = draft.config.ensemble_scheduling.step
    return pick(draw, *steps) if steps else steps.add(model_name="pool_fp32", model_version=-1)


def _a_map(draw: Draw, draft: Draft) -> Any:
    step = a_step(draw, draft)
    return pick(draw, step.input_map, step.output_map)


def step_model(draw: Draw, draft: Draft) -> None:
    """Another model, with the maps as they were."""
    a_step(draw, draft).model_name = pick(draw, *POOL, "nosuch", "", MAIN)


def step_version(draw: Draw, draft: Draft) -> None:
    """Versions that there are, and are not."""
    a_step(draw, draft).model_version = pick(draw, -2, -1, 0, 1, 2, 3)


def map_value(draw: Draw, draft: Draft) -> None:
    """Another tensor, or one that nobody writes."""
    mapped = _a_map(draw, draft)
    if mapped:
        mapped[pick(draw, *sorted(mapped))] = pick(draw, *_ANY_NAME)


def map_key(draw: Draw, draft: Draft) -> None:
    """A tensor of the model that it does not have, or that is mapped now."""
    mapped = _a_map(draw, draft)
    mapped[pick(draw, "X", "Y", "N", "Z", "NO", "")] = pick(draw, *_ANY_NAME)


def map_entry_gone(draw: Draw, draft: Draft) -> None:
    """An input or output of a step less."""
    mapped = _a_map(draw, draft)
    if mapped:
        del mapped[pick(draw, *sorted(mapped))]


def maps_gone(draw: Draw, draft: Draft) -> None:
    """Of a step."""
    a_step(draw, draft).ClearField(pick(draw, "input_map", "output_map"))


def step_more(draw: Draw, draft: Draft) -> None:
    """A step again, or one that reads and writes anything."""
    steps = draft.config.ensemble_scheduling.step
    if draw(st.booleans()):
        steps.add().CopyFrom(a_step(draw, draft))
        return
    step = steps.add(model_name=pick(draw, "pool_fp32", "pool_cast"), model_version=-1)
    step.input_map["X"] = pick(draw, *_ANY_NAME)
    step.output_map["Y"] = pick(draw, *_ANY_NAME)


def step_gone(draw: Draw, draft: Draft) -> None:
    """A step less, or none at all."""
    steps = draft.config.ensemble_scheduling.step
    if steps and draw(st.integers(0, 2)):
        steps.pop(draw(st.integers(0, len(steps) - 1)))
    else:
        draft.config.ensemble_scheduling.ClearField("step")


def order(draw: Draw, draft: Draft) -> None:
    """Steps may stand in any order."""
    steps = list(draft.config.ensemble_scheduling.step)
    copies = [type(step).FromString(step.SerializeToString()) for step in reversed(steps)]
    draft.config.ensemble_scheduling.ClearField("step")
    draft.config.ensemble_scheduling.step.extend(copies)


def public_tensor(draw: Draw, draft: Draft) -> None:
    """Dims, data type or name of one of the ensemble's own tensors."""
    several = [*draft.config.input, *draft.config.output]
    if not several:
        return
    one = pick(draw, *several)
    what = pick(draw, "dims", "dims", "data_type", "name", "optional", "reshape")
    if what == "dims":
        del one.dims[:]
        one.dims.extend(pick(draw, (4,), (-1,), (5,), (1, 4), (4, 1), (-1, -1), (0,), (), (2, 2)))
    elif what == "data_type":
        one.data_type = pick(draw, 0, 8, 11, 13)
    elif what == "name":
        one.name = pick(draw, *_ANY_NAME)
    elif what == "optional" and "optional" in one.DESCRIPTOR.fields_by_name:
        one.optional = True
    else:
        one.reshape.shape.extend(pick(draw, (4,), (2, 2), (-1,), (1, 4)))


def public_tensor_more(draw: Draw, draft: Draft) -> None:
    """An input that nobody reads, an output that nobody writes."""
    several = pick(draw, draft.config.input, draft.config.output)
    several.add(**tensor(pick(draw, *_ANY_NAME), pick(draw, *DTYPES), dims(draw)))


def public_tensor_gone(draw: Draw, draft: Draft) -> None:
    """One less."""
    several = pick(draw, draft.config.input, draft.config.output)
    if several:
        several.pop(draw(st.integers(0, len(several) - 1)))


def ensemble_batch_size(draw: Draw, draft: Draft) -> None:
    """Other than the steps'."""
    draft.config.max_batch_size = pick(draw, -1, 0, 1, 2, 4, 8, 16)


def platform(draw: Draw, draft: Draft) -> None:
    """How Triton knows that it is one."""
    draft.config.platform = pick(draw, "", "ensemble", "ensembl", "python")
    draft.config.backend = pick(draw, "", "", "python", "ensemble")


def of_single_models(draw: Draw, draft: Draft) -> None:
    """What only models with a backend may have."""
    config = draft.config
    what = pick(draw, "instances", "optimization", "warmup", "parameters", "decoupled", "cache",
                "policy", "priority")  # fmt: skip
    if what == "instances":
        config.instance_group.add(kind=pick(draw, 0, 2), count=pick(draw, 0, 1, 2))
    elif what == "optimization":
        config.optimization.input_pinned_memory.enable = True
    elif what == "warmup":
        one = config.model_warmup.add(name="w", batch_size=1)
        for declared in config.input:
            entry = one.inputs[declared.name]
            entry.data_type, entry.zero_data = declared.data_type, True
            entry.dims.extend(abs(size) for size in declared.dims)
    elif what == "parameters":
        config.parameters["x"].string_value = "y"
    elif what == "decoupled":
        config.model_transaction_policy.decoupled = draw(st.booleans())
    elif what == "cache":
        config.response_cache.enable = True
    elif what == "policy":
        config.version_policy.specific.versions.extend(pick(draw, (1,), (2,), (1, 2)))
    else:
        config.optimization.priority = pick(draw, 1, 2)


def batcher_too(draw: Draw, draft: Draft) -> None:
    """Another scheduling takes the ensemble's place: only one can be."""
    if draw(st.booleans()):
        draft.config.dynamic_batching.SetInParent()
    else:
        draft.config.sequence_batching.SetInParent()


def folders(draw: Draw, draft: Draft) -> None:
    """An ensemble needs a version folder, be it empty."""
    draft.files = pick(draw, {}, {"1/keep": ""}, {"2/keep": ""}, {"01/keep": ""}, {"x/keep": ""})


ENSEMBLE_TOUCHES: tuple[Touch, ...] = (
    step_model, step_version, map_value, map_value, map_key, map_key, map_entry_gone, maps_gone,
    step_more, step_gone, order, public_tensor, public_tensor, public_tensor_more,
    public_tensor_gone, ensemble_batch_size, platform, of_single_models, batcher_too, folders,
)  # fmt: skip
