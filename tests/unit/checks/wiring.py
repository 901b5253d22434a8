# SPDX-License-Identifier: Apache-2.0
"""Ensembles as values, to change and to write as files; and valid ones made at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tests.check_models.ensembles import composing
from tritonctl.checks.examples.files import ExampleFile

Said = dict[str, str]  # tensors by name: "INT32 [ 4 ]"


@dataclass(frozen=True)
class Step:
    """A step with its own model."""

    model: str
    inputs: Said
    outputs: Said
    reads: dict[str, str]
    writes: dict[str, str]
    batch: int = 8
    decoupled: bool = False
    version: int = -1
    absent: bool = False


@dataclass(frozen=True)
class Wiring:
    """An ensemble called m."""

    inputs: Said
    outputs: Said
    steps: tuple[Step, ...]
    batch: int = 8
    more: str = ""
    extra: dict[str, str | ExampleFile] = field(default_factory=dict)

    def files(self) -> dict[str, str | ExampleFile]:
        """The repository."""
        found: dict[str, str | ExampleFile] = {"m/config.pbtxt": self.config(), "m/1/.keep": ""}
        for step in (step for step in self.steps if not step.absent):
            found |= composing(
                step.model, step.inputs, step.outputs, batch=step.batch, decoupled=step.decoupled
            )
        return found | self.extra

    def config(self) -> str:
        """The ensemble's own config.pbtxt."""
        steps = "\n".join(_step(step) for step in self.steps)
        return (
            f'name: "m"\nplatform: "ensemble"\nmax_batch_size: {self.batch}\n{self.more}'
            f"{_declared('input', self.inputs)}{_declared('output', self.outputs)}"
            f"ensemble_scheduling {{\n{steps}\n}}\n"
        )

    def with_step(self, at: int, **changes: object) -> Wiring:
        """With one step changed."""
        steps = list(self.steps)
        steps[at] = replace(steps[at], **changes)  # type: ignore[arg-type]
        return replace(self, steps=tuple(steps))


def _declared(direction: str, tensors: Said) -> str:
    return "".join(
        f'{direction} {{ name: "{name}" data_type: TYPE_{said.split()[0]} '
        f"dims: {said.split(' ', 1)[1]} }}\n"
        for name, said in tensors.items()
    )


def _step(step: Step) -> str:
    maps = [f'    input_map {{ key: "{k}" value: "{v}" }}' for k, v in step.reads.items()]
    maps += [f'    output_map {{ key: "{k}" value: "{v}" }}' for k, v in step.writes.items()]
    head = f'    model_name: "{step.model}"\n    model_version: {step.version}'
    return "  step {\n" + "\n".join([head, *maps]) + "\n  }"


DTYPES = ("INT32", "FP32", "STRING", "BOOL")


@st.composite
def valid(draw: st.DrawFn) -> Wiring:
    """Layers of steps; behind a decoupled step, only what comes from it is read."""
    batch = draw(st.sampled_from([0, 1, 4]))
    inputs = {f"in{n}": draw(_tensor()) for n in range(draw(st.integers(1, 3)))}
    there, steps = dict(inputs), list[Step]()
    for number in range(draw(st.integers(1, 5))):
        step = draw(_a_step(number, there, batch))
        steps.append(step)
        there = {} if step.decoupled else there
        there |= {step.writes[name]: said for name, said in step.outputs.items()}
    wanted = [name for name in there if name not in inputs]
    outputs = draw(st.lists(st.sampled_from(wanted), min_size=1, unique=True))
    return _pruned(Wiring(inputs, {name: there[name] for name in outputs}, tuple(steps), batch))


@st.composite
def _tensor(draw: st.DrawFn) -> str:
    sizes = draw(st.lists(st.sampled_from([-1, 1, 2, 4]), min_size=1, max_size=3))
    return f"{draw(st.sampled_from(DTYPES))} [ {', '.join(map(str, sizes))} ]"


@st.composite
def _a_step(draw: st.DrawFn, number: int, there: Said, batch: int) -> Step:
    read = draw(st.lists(st.sampled_from(sorted(there)), min_size=1, max_size=3, unique=True))
    reads = {f"A{at}": name for at, name in enumerate(read)}
    inputs = {key: draw(_widened(there[name])) for key, name in reads.items()}
    if draw(st.booleans()):
        inputs["B"] = "INT32 [ 1 ] optional: true"
    outputs = {f"C{at}": draw(_tensor()) for at in range(draw(st.integers(1, 2)))}
    return Step(
        model=f"step{number}",
        inputs=inputs,
        outputs=outputs,
        reads=reads,
        writes={name: f"{name}_of_{number}" for name in outputs},
        batch=draw(st.sampled_from([batch, batch + 4])) if batch else 0,
        decoupled=draw(st.integers(0, 4)) == 0,
    )


@st.composite
def _widened(draw: st.DrawFn, said: str) -> str:
    """The same, some sizes -1."""
    dtype, dims = said.split(" ", 1)
    sizes = [draw(st.sampled_from([size, "-1"])) for size in dims.strip("[] ").split(", ")]
    return f"{dtype} [ {', '.join(sizes)} ]"


def _pruned(wiring: Wiring) -> Wiring:
    """Without what nobody reads."""
    while True:
        read = {*wiring.outputs, *(name for step in wiring.steps for name in step.reads.values())}
        steps = tuple(
            replace(step, writes={k: v for k, v in step.writes.items() if v in read})
            for step in wiring.steps
        )
        pruned = replace(
            wiring,
            steps=tuple(step for step in steps if step.writes),
            inputs={name: said for name, said in wiring.inputs.items() if name in read},
        )
        if pruned == wiring:
            return wiring
        wiring = pruned
