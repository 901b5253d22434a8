# SPDX-License-Identifier: Apache-2.0
"""What can be done to the configuration of one model: each may leave it valid, or break it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.differential.drafts import (
    DECOUPLED,
    DTYPES,
    MAIN,
    PYTHON,
    Draft,
    Draw,
    Touch,
    dims,
    pick,
    tensor,
)
from tritonctl.checks.examples.files import ExampleFile

RESHAPES = (
    (), (1,), (4,), (2, 2), (1, 4), (-1,), (-1, 4), (-1, -1), (2, -1, 3), (0,), (-2,),
    (1, -1, 4, 1), (6, -1), (3, -1, 2),
)  # fmt: skip
FLAGS = ("is_shape_tensor", "allow_ragged_batch", "optional", "is_non_linear_format_io")
SIZES = (-1, 0, 1, 2, 3, 4, 8, 100)


def a_tensor(draw: Draw, draft: Draft) -> Any:
    """One of its inputs and outputs."""
    return an_input(draw, draft) if draw(st.booleans()) else an_output(draw, draft)


def an_input(draw: Draw, draft: Draft) -> Any:
    """One of its inputs; another touch may have taken them all."""
    several = draft.config.input
    return pick(draw, *several) if several else several.add(**tensor("IN0", "TYPE_FP32", [1]))


def an_output(draw: Draw, draft: Draft) -> Any:
    """One of its outputs."""
    several = draft.config.output
    return pick(draw, *several) if several else several.add(**tensor("OUT0", "TYPE_FP32", [1]))


def name(draw: Draw, draft: Draft) -> None:
    """Absent, or another than the folder's."""
    draft.config.name = pick(draw, "", "other", f"{MAIN} ", MAIN.upper(), "é")


def backend(draw: Draw, draft: Draft) -> None:
    """None, a platform instead, both; not those that only this server happens to lack."""
    platforms = {"": ("", "python", "ensemble", "x"),
                 "python": ("x", "python", "ensemble", "onnxruntime_onnx")}  # fmt: skip
    draft.config.backend = pick(draw, *platforms)
    draft.config.platform = pick(draw, *platforms[draft.config.backend])


def batch_size(draw: Draw, draft: Draft) -> None:
    """Also negative, also large."""
    draft.config.max_batch_size = pick(draw, -2, -1, 0, 1, 2, 2**20, 2**31 - 1)


def version_policy(draw: Draw, draft: Draft) -> None:
    """Versions that there are, and are not."""
    folders = pick(draw, (1,), (1, 2), (3,), (1, 3), (2, 10))
    draft.files = {f"{folder}/model.py": PYTHON for folder in folders}
    policy = draft.config.version_policy
    which = pick(draw, "latest", "all", "specific", "empty")
    if which == "latest":
        policy.latest.num_versions = pick(draw, 0, 1, 2, 5)
    elif which == "all":
        policy.all.SetInParent()
    elif which == "specific":
        policy.specific.versions.extend(
            draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 10]), max_size=2))
        )
    else:
        policy.SetInParent()


def version_folders(draw: Draw, draft: Draft) -> None:
    """Names that are no numbers, no folder at all."""
    draft.files = {f"{pick(draw, '0', '01', 'v1', '1', '7', 'one', '-1', '1.0')}/model.py": PYTHON}
    if draw(st.booleans()):
        draft.files[f"{pick(draw, '2', 'configs', 'x')}/model.py"] = PYTHON


def no_version(draw: Draw, draft: Draft) -> None:
    """Only a configuration."""
    draft.files = {"readme.txt": "", "model.py": PYTHON} if draw(st.booleans()) else {}


def shape(draw: Draw, draft: Draft) -> None:
    """Dims that mean nothing."""
    one = a_tensor(draw, draft)
    del one.dims[:]
    one.dims.extend(draw(st.lists(st.sampled_from([-2, -1, 0, 1, 4, 2**40]), max_size=4)))


def dtype(draw: Draw, draft: Draft) -> None:
    """Also none, also one that there is not."""
    a_tensor(draw, draft).data_type = pick(draw, 0, 1, 9, 13, 14, 15, 99)


def tensor_name(draw: Draw, draft: Draft) -> None:
    """Empty, odd, taken."""
    one = a_tensor(draw, draft)
    one.name = pick(draw, "", "IN0", "OUT0", "a b", "a/b", "é", "0", "IN0__1", "x" * 300)


def no_tensors(draw: Draw, draft: Draft) -> None:
    """No input, no output, neither."""
    for direction in pick(draw, ("input",), ("output",), ("input", "output")):
        draft.config.ClearField(direction)


def more_tensors(draw: Draw, draft: Draft) -> None:
    """One more of the same name, or of a new one."""
    several = pick(draw, draft.config.input, draft.config.output)
    several.add(**tensor(pick(draw, "IN0", "OUT0", "NEW"), pick(draw, *DTYPES), dims(draw)))


def reshape(draw: Draw, draft: Draft) -> None:
    """As many elements or not, variable dimensions in several ways."""
    one = a_tensor(draw, draft)
    if draw(st.booleans()):
        del one.dims[:]
        one.dims.extend(pick(draw, (1,), (4,), (2, 2), (-1,), (-1, 4), (-1, -1), (2, -1, 3)))
    one.reshape.SetInParent()
    one.reshape.shape.extend(pick(draw, *RESHAPES))


def tensor_format(draw: Draw, draft: Draft) -> None:
    """NHWC and NCHW want three dimensions."""
    one = an_input(draw, draft)
    one.format = pick(draw, 0, 1, 2, 3)
    if draw(st.booleans()):
        del one.dims[:]
        one.dims.extend(pick(draw, (3, 8, 8), (1, 3, 8, 8), (-1, -1, 3)))


def tensor_flags(draw: Draw, draft: Draft) -> None:
    """Shape tensors, ragged, optional, non-linear."""
    one = a_tensor(draw, draft)
    setattr(
        one, pick(draw, *(flag for flag in FLAGS if flag in one.DESCRIPTOR.fields_by_name)), True
    )


def label_file(draw: Draw, draft: Draft) -> None:
    """Of an output; there or not, a folder, elsewhere."""
    file = pick(draw, "labels.txt", "1/labels.txt", "no.txt", "../no.txt", "1")
    an_output(draw, draft).label_filename = file
    if file.endswith("labels.txt") and draw(st.booleans()):
        draft.files[file] = pick(draw, "a\nb\n", "")


def instances(draw: Draw, draft: Draft) -> None:
    """Kinds, counts, devices."""
    for number in range(draw(st.integers(1, 2))):
        group = draft.config.instance_group.add()
        group.kind = pick(draw, 0, 1, 2, 2, 2, 3, 9)
        group.count = pick(draw, 0, 1, 1, 2, -1)
        if draw(st.integers(0, 2)) == 0:
            group.gpus.extend(pick(draw, (0,), (0, 1), (-1,), (0, 0), (7,)))
        if draw(st.integers(0, 3)) == 0:
            group.name = pick(draw, "g", f"g{number}", "")
        if draw(st.integers(0, 5)) == 0:
            group.passive = True


def instance_details(draw: Draw, draft: Draft) -> None:
    """Profiles, host policy, secondary devices, rate limiter."""
    group = draft.config.instance_group.add(kind=2)
    what = pick(draw, "profile", "host_policy", "secondary", "rate", "priority")
    if what == "profile":
        group.profile.extend(pick(draw, ("0",), ("x",), ("0", "1")))
    elif what == "host_policy":
        group.host_policy = pick(draw, "cpu", "nowhere")
    elif what == "secondary":
        group.secondary_devices.add(kind=pick(draw, 0, 1), device_id=pick(draw, -1, 0, 1))
    elif what == "rate":
        resource = group.rate_limiter.resources.add()
        resource.name = pick(draw, "", "R", "R")
        resource.count = pick(draw, 0, 1, 2)
        setattr(resource, "global", draw(st.booleans()))
    else:
        group.rate_limiter.priority = pick(draw, 0, 1, 2**32 - 1)


def dynamic_batching(draw: Draw, draft: Draft) -> None:
    """Preferred sizes, delay, order."""
    batching = draft.config.dynamic_batching
    batching.SetInParent()
    batching.preferred_batch_size.extend(draw(st.lists(st.sampled_from(SIZES), max_size=2)))
    batching.max_queue_delay_microseconds = pick(draw, 0, 0, 100, 2**63)
    batching.preserve_ordering = draw(st.booleans())


def priorities(draw: Draw, draft: Draft) -> None:
    """Levels, and policies of levels that there are not."""
    batching = draft.config.dynamic_batching
    batching.priority_levels = pick(draw, 0, 1, 2, 3)
    batching.default_priority_level = pick(draw, 0, 1, 2, 3, 4)
    for level in draw(st.lists(st.sampled_from([0, 1, 2, 3, 9]), max_size=2)):
        _policy(draw, batching.priority_queue_policy[level])


def queue_policy(draw: Draw, draft: Draft) -> None:
    """Of dynamic batching."""
    _policy(draw, draft.config.dynamic_batching.default_queue_policy)


def _policy(draw: Draw, policy: Any) -> None:
    policy.SetInParent()
    policy.timeout_action = pick(draw, 0, 1, 5)
    policy.default_timeout_microseconds = pick(draw, 0, 10, 2**63)
    policy.allow_timeout_override = draw(st.booleans())
    policy.max_queue_size = pick(draw, 0, 1, 2**32 - 1)


def sequence_batching(draw: Draw, draft: Draft) -> None:
    """Direct, oldest, neither, iterative."""
    batching = draft.config.sequence_batching
    batching.SetInParent()
    strategy = pick(draw, "direct", "oldest", "oldest", "")
    if strategy == "direct":
        batching.direct.SetInParent()
        batching.direct.minimum_slot_utilization = pick(draw, 0.0, 0.5, 1.5)
        batching.direct.max_queue_delay_microseconds = pick(draw, 0, 100)
    elif strategy == "oldest":
        batching.oldest.max_candidate_sequences = pick(draw, 0, 1, 4, -1)
        batching.oldest.preferred_batch_size.extend(
            draw(st.lists(st.sampled_from(SIZES), max_size=2))
        )
        batching.oldest.preserve_ordering = draw(st.booleans())
    batching.max_sequence_idle_microseconds = pick(draw, 0, 10, 10**9)
    batching.iterative_sequence = draw(st.integers(0, 4)) == 0


def controls(draw: Draw, draft: Draft) -> None:
    """Control tensors: kinds twice, wrong types, several values, clashes with inputs."""
    batching = draft.config.sequence_batching
    for number in range(draw(st.integers(1, 3))):
        one = batching.control_input.add(name=pick(draw, f"C{number}", f"C{number}", "IN0", ""))
        for _ in range(pick(draw, 1, 1, 1, 0, 2)):
            control = one.control.add(kind=pick(draw, 0, 1, 2, 3, 3))
            if control.kind == 3 and draw(st.integers(0, 3)):
                control.data_type = pick(draw, 4, 9, 13, 5, 11, 0)
                continue
            field = pick(draw, "int32_false_true", "fp32_false_true", "bool_false_true", None)
            if field is not None:
                getattr(control, field).extend(pick(draw, (0, 1), (0, 1), (1,), (0, 1, 1)))


def states(draw: Draw, draft: Draft) -> None:
    """Implicit state, with and without a beginning."""
    state = draft.config.sequence_batching.state.add()
    state.input_name = pick(draw, "S_IN", "S_IN", "", "IN0")
    state.output_name = pick(draw, "S_OUT", "S_OUT", "", "OUT0")
    state.data_type = pick(draw, 11, 8, 13, 0)
    state.dims.extend(pick(draw, (1,), (4,), (-1,), (), (0,)))
    for _ in range(pick(draw, 0, 0, 1, 2)):
        initial = state.initial_state.add(name="zero", data_type=pick(draw, 11, 8, 0))
        initial.dims.extend(pick(draw, (1,), (4,), (-1,), ()))
        if draw(st.booleans()):
            initial.zero_data = True
        else:
            initial.data_file = pick(draw, "state", "")


def warmup(draw: Draw, draft: Draft) -> None:
    """Requests that fit, and do not."""
    config = draft.config
    one = config.model_warmup.add(name=pick(draw, "w", "w", ""))
    one.batch_size = pick(draw, 0, 1, 1, 2, 9)
    one.count = pick(draw, 0, 0, 1, 2)
    for declared in config.input:
        if draw(st.integers(0, 5)) == 0:
            continue
        entry = one.inputs[declared.name]
        entry.data_type = declared.data_type if draw(st.integers(0, 5)) else 8
        shape = [4 if size < 0 else size for size in declared.dims]
        entry.dims.extend(shape if draw(st.integers(0, 5)) else [*declared.dims, -1])
        which = pick(draw, "zero", "zero", "random", "file", "none")
        if which == "file":
            entry.input_data_file = pick(draw, "raw", "absent")
            draft.files["warmup/raw"] = ExampleFile(bytes(pick(draw, 0, 4, 64)))
        elif which != "none":
            setattr(entry, f"{which}_data", True)
    if draw(st.integers(0, 5)) == 0:
        one.inputs["EXTRA"].data_type = 11
        one.inputs["EXTRA"].dims.append(1)
        one.inputs["EXTRA"].zero_data = True


def batch_tensors(draw: Draw, draft: Draft) -> None:
    """batch_input and batch_output."""
    if draw(st.booleans()):
        one = draft.config.batch_input.add(kind=pick(draw, 0, 1, 2, 3, 4, 9))
        one.target_name.extend(pick(draw, ("B",), (), ("B", "C"), ("IN0",)))
        one.data_type = pick(draw, 11, 8, 11, 13, 0)
        one.source_input.extend(pick(draw, ("IN0",), (), ("IN0", "IN1"), ("NO",)))
    else:
        one = draft.config.batch_output.add(kind=0)
        one.target_name.extend(pick(draw, ("OUT0",), (), ("NO",)))
        one.source_input.extend(pick(draw, ("IN0",), (), ("NO",)))


def optimization(draw: Draw, draft: Draft) -> None:
    """Mostly about things that this server does not have."""
    part = draft.config.optimization
    what = pick(draw, "priority", "graph", "cuda", "pinned", "accelerator", "gather")
    if what == "priority":
        part.priority = pick(draw, 0, 1, 2, 7)
    elif what == "graph":
        part.graph.level = pick(draw, -1, 0, 1, 9)
    elif what == "cuda":
        part.cuda.graphs = True
        part.cuda.graph_spec.add(batch_size=pick(draw, -1, 0, 2))
    elif what == "pinned":
        part.input_pinned_memory.enable = draw(st.booleans())
        part.output_pinned_memory.SetInParent()
    elif what == "accelerator":
        chosen = part.execution_accelerators
        several = pick(draw, chosen.gpu_execution_accelerator, chosen.cpu_execution_accelerator)
        several.add(name=pick(draw, "tensorrt", "openvino", "nosuch", ""))
    else:
        part.gather_kernel_buffer_threshold = pick(draw, 0, 1, 2**31)
        part.eager_batching = True


def parameters(draw: Draw, draft: Draft) -> None:
    """Those that the Python backend knows, with values good and bad."""
    key = pick(draw, "FORCE_CPU_ONLY_INPUT_TENSORS", "EXECUTION_ENV_PATH", "x", "", "é")
    value = pick(draw, "yes", "no", "maybe", "", " yes")
    if key == "EXECUTION_ENV_PATH":  # elsewhere on the machine is not the repository's matter
        value = pick(draw, "", "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    draft.config.parameters[key].string_value = value


def response_cache(draw: Draw, draft: Draft) -> None:
    """The server has no cache."""
    draft.config.response_cache.enable = draw(st.booleans())


def decoupled(draw: Draw, draft: Draft) -> None:
    """A model that sends as many responses as it likes."""
    draft.config.model_transaction_policy.decoupled = True
    files = draft.files.items()
    draft.files = {n: DECOUPLED if f is PYTHON and draw(st.booleans()) else f for n, f in files}


def files_named(draw: Draw, draft: Draft) -> None:
    """default_model_filename and cc_model_filenames, of files that there are."""
    draft.files = {"1/model.py": PYTHON, "1/other.py": PYTHON}
    if draw(st.booleans()):
        draft.config.default_model_filename = pick(draw, "other.py", "model.py", "./other.py")
    else:
        draft.config.cc_model_filenames["8.0"] = pick(draw, "other.py", "model.py")


def metrics(draw: Draw, draft: Draft) -> None:
    """Tags, operations."""
    if draw(st.booleans()):
        draft.config.metric_tags[pick(draw, "a", "", "model")] = pick(draw, "b", "", "é")
    else:
        draft.config.model_operations.op_library_filename.append("x.so")


def ensemble_too(draw: Draw, draft: Draft) -> None:
    """Scheduling of an ensemble in a model that has a backend."""
    scheduling = draft.config.ensemble_scheduling
    scheduling.SetInParent()
    if draw(st.booleans()):
        scheduling.step.add(model_name=pick(draw, "pool_fp32", MAIN, "nosuch"), model_version=-1)


def code(draw: Draw, draft: Draft) -> None:
    """model.py as people write it, and break it."""
    other = pick(
        draw,
        PYTHON.replace("TritonPythonModel", "Model"),
        PYTHON.replace("def execute", "def exec"),
        PYTHON.replace("class TritonPythonModel:", "class TritonPythonModel(object):"),
        PYTHON.replace(":\n", "\n", 1),
        PYTHON.replace("    def", "\tdef"),
        "",
        "\ufeff" + PYTHON,
        PYTHON.replace("\n", "\r\n"),
        "# é\n" + PYTHON,
        "# -*- coding: latin-1 -*-\n" + PYTHON,
        PYTHON + "\n\x00",
        PYTHON.replace("class TritonPythonModel", "class Base") + "\nTritonPythonModel = Base\n",
    )
    draft.files = dict.fromkeys(draft.files, other)


TOUCHES: tuple[Touch, ...] = (
    name, backend, batch_size, version_policy, version_folders, no_version, shape, dtype,
    tensor_name, no_tensors, more_tensors, reshape, tensor_format, tensor_flags, label_file,
    instances, instance_details, dynamic_batching, priorities, queue_policy, sequence_batching,
    controls, states, warmup, batch_tensors, optimization, parameters, response_cache, decoupled,
    files_named, metrics, ensemble_too, code,
)  # fmt: skip
