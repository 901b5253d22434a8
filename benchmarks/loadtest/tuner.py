# SPDX-License-Identifier: Apache-2.0
"""Compares the tuner with an exhaustive sweep of the same settings, measured the same way.

Usage: python benchmarks/loadtest/tuner.py [simulated] [encoder] [speller] [--seconds 4]
Exit code 1 when the tuner's settings stay below 95 % of the sweep's best or take more than 25 % of
its trials. The best of many noisy capacities was lucky, and one disturbed trial ruins a capacity:
both choices are measured again, in turns, and their medians compared. The real subjects take a
quarter to half an hour each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

from bench import CHECKOUT, PROMPTS, SILENT, write_project  # noqa: E402
from bench import speller as shipped  # noqa: E402
from tests.unit.tuning.simulated import Knob, Laboratory, Machine  # noqa: E402
from tritonctl import build_engine  # noqa: E402
from tritonctl.engines.builds.catalog import builder_named  # noqa: E402
from tritonctl.engines.builds.runners import venv_python  # noqa: E402
from tritonctl.loadtest.analysis.capacity import CapacityTrial, find_capacity  # noqa: E402
from tritonctl.loadtest.run.plan import effective_slo, select_scenario  # noqa: E402
from tritonctl.tuning.knobs import build_space  # noqa: E402
from tritonctl.tuning.outcome import Move, SearchBudget  # noqa: E402
from tritonctl.tuning.queueing import BatchServer, ServiceCurve, capacity  # noqa: E402
from tritonctl.tuning.search import Measure, Order, Predict, SettingsSearch  # noqa: E402
from tritonctl.tuning.service_time import create_predictor, measure_service_curve  # noqa: E402
from tritonctl.tuning.step_explanation import sort_by_bottleneck  # noqa: E402
from tritonctl.tuning.trial_runner import TrialRunner  # noqa: E402
from tritonctl.tuning.trials import Settings, TrialRequest, TrialStore, TuningTrial, Value  # noqa: E402
from tritonctl.tuning.tuned_server import TunedServer  # noqa: E402

PRECISION = 0.05
REQUESTS = 600
ENCODER_TOKENS = 24
TURNS = 3


def unordered(_: TuningTrial | None, moves: Sequence[Move]) -> Sequence[Move]:
    """The moves as they come."""
    return moves


@dataclass(frozen=True)
class Subject:
    """What is tuned: knobs, how to measure, where to begin."""

    knobs: Sequence[Knob]
    measure: Measure
    predict: Predict
    budget: SearchBudget
    order: Order = unordered
    allowed: Callable[[Settings], bool] = lambda _: True

    def grid(self) -> list[Settings]:
        """Every allowed combination."""
        names = [knob.name for knob in self.knobs]
        rows = itertools.product(*(knob.values for knob in self.knobs))
        grid: list[Settings] = [dict(zip(names, row, strict=True)) for row in rows]
        return [settings for settings in grid if self.allowed(settings)]


class Counted:
    """Counts the trials of the tuner or of the sweep."""

    def __init__(self, measure: Measure, offset: int) -> None:
        self._measure = measure
        self._offset = offset
        self.count = 0

    def __call__(self, asked: TrialRequest) -> TuningTrial:
        """Measure with arrivals of its own."""
        self.count += 1
        return self._measure(replace(asked, repeat=asked.repeat + self._offset))


def swept(subject: Subject, measure: Measure) -> Mapping[str, float]:
    """The capacity of every combination: `tritonctl.loadtest` doubles, then bisects the rate."""
    rates = {}
    grid = subject.grid()
    for number, settings in enumerate(grid, 1):
        rates[_key(settings)] = rate = _capacity(subject, settings, measure)
        say(f"  sweep {number} of {len(grid)}: {rate:.4g}/s with {dict(settings)}")
    return rates


def _capacity(subject: Subject, settings: Settings, measure: Measure) -> float:
    budget, times = subject.budget, Counter[float]()

    def at(rate: float) -> CapacityTrial:
        times[rate] += 1
        seconds = budget.seconds_for(rate, REQUESTS)
        asked = TrialRequest(dict(settings), float(f"{rate:.4g}"), seconds, repeat=times[rate])
        trial = measure(asked)
        return CapacityTrial(rate, trial.verdict, trial.leans_met)

    lowest = budget.start / 4
    found = find_capacity(at, lowest=lowest, highest=budget.highest, precision=PRECISION)
    return found.rate or 0.0


def compare(name: str, subject: Subject) -> bool:
    """Print a row; return whether both bounds are kept."""
    tuner, sweep = Counted(subject.measure, 0), Counted(subject.measure, 5000)
    outcome = SettingsSearch(
        subject.knobs,
        tuner,
        subject.budget,
        predict=subject.predict,
        order=subject.order,
        allowed=subject.allowed,
        notify=lambda step: say(f"  tuner: {step.rate}/s {'better' if step.won else 'no better'}"),
    ).run()
    rates = swept(subject, sweep)
    champion, chosen = max(subject.grid(), key=lambda s: rates[_key(s)]), outcome.best.settings
    base = rates[_key({k.name: k.base for k in subject.knobs})]
    best = reached = rates[_key(champion)]
    if _key(chosen) != _key(champion):
        best, reached = measured_again(subject, champion, chosen)
    share, cost = reached / best, tuner.count / sweep.count
    say(f"{name}: {len(rates)} settings, today's {base:.4g}/s")
    say(f"  sweep: {rates[_key(champion)]:.4g}/s after {sweep.count} trials with {champion}")
    say(f"  tuner: {rates[_key(chosen)]:.4g}/s after {tuner.count} trials with {dict(chosen)}")
    say(
        f"  the tuner reaches {share:.1%} ({reached:.4g}/s of {best:.4g}/s, in turns) at {cost:.1%}"
    )
    return share >= 0.95 and cost <= 0.25


def measured_again(subject: Subject, one: Settings, other: Settings) -> tuple[float, float]:
    """Median capacities of two settings, measured in turns with new arrivals."""
    rates: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        measure = Counted(subject.measure, 10_000 + 100 * turn)
        pairs = [(one, rates[0]), (other, rates[1])]
        for settings, into in pairs if turn % 2 == 0 else pairs[::-1]:
            into.append(_capacity(subject, settings, measure))
            say(f"  again: {into[-1]:.4g}/s with {dict(settings)}")
    return median(rates[0]), median(rates[1])


def _key(settings: Settings) -> str:
    return repr(sorted(settings.items()))


def say(text: str) -> None:
    print(text, flush=True)


def simulated() -> Subject:
    """Four cores; large batches pay: the optimum is 4 instances with batches of 16."""
    machine = Machine()
    knobs = (
        Knob("instances", (1, 2, 3, 4, 6), 1),
        Knob("max_batch", (1, 2, 4, 8, 16, 32), 8),
        Knob("delay_us", (0, 1000, 5000), 0),
    )
    curve = ServiceCurve(machine.fixed, machine.each)

    def predict(settings: Settings) -> float:
        instances, batch = int(settings["instances"]), int(settings["max_batch"])
        delay = int(settings["delay_us"]) / 1e6
        return capacity(BatchServer(curve, instances, batch, delay, cores=4), machine.limit)

    laboratory = Laboratory(machine, seed=11, drift=0.02)
    budget = SearchBudget(seconds=1e9, start=50.0, race=1500, shortest=0.5)
    return Subject(knobs, laboratory, predict, budget)


@contextmanager
def real(
    folder: Path, record: Mapping[str, Any], values: Mapping[str, Sequence[Value]], seconds: float
) -> Iterator[Subject]:
    """A project on a real server; `values`: the knobs and candidates of this comparison."""
    project = write_project(folder, **record)
    name, scenario = select_scenario(project, None)
    build_engine(project, scenario.model, SILENT)
    whole = build_space(project, scenario.model, 0, 2)
    knobs = tuple(replace(k, values=tuple(values[k.name])) for k in whole.knobs if k.name in values)
    space = replace(whole, knobs=knobs)
    with TunedServer(space, folder / "tuning", SILENT) as server:
        store = TrialStore(folder / "trials", "benchmark")
        bench = TrialRunner(project, name, scenario, server, store, SILENT)
        server.apply(space.base)
        service = measure_service_curve(bench.run, knobs[0].model, folder)
        start = 0.5 * service.throughput if service else 5.0
        budget = SearchBudget(1e9, start, lowest=start / 16, longest=seconds, shortest=seconds)
        yield Subject(
            tuple(Knob(k.name, k.values, k.base) for k in knobs),
            bench,
            create_predictor(space, effective_slo(project, scenario), service),
            budget,
            lambda trial, moves: sort_by_bottleneck(space, trial, moves),
            space.is_allowed,
        )


@contextmanager
def speller(seconds: float) -> Iterator[Subject]:
    """The shipped text model in int8."""
    with tempfile.TemporaryDirectory() as name:
        load = {
            "model": "speller",
            "requests": [{"prompts": str(PROMPTS), "max_tokens": 32}],
            "arrivals": {"process": "poisson", "rate": 10},
            "cool_down_seconds": 5,
        }
        models = shipped(slo={"ttft_p99_ms": 500, "itl_p99_ms": 100})
        record = {"models": models, "loadtests": {"speller": load}}
        values: dict[str, Sequence[Value]] = {
            "engine.max_num_seqs": (4, 16, 32),
            "engine.INFERENCE_NUM_THREADS": (1, 0),
            "detokenizer.max_queue_delay_microseconds": (0, 1500, 5000),
        }
        with real(Path(name), record, values, seconds) as subject:
            yield subject


@contextmanager
def encoder(seconds: float) -> Iterator[Subject]:
    """A small BERT with random weights as an ONNX graph, for hundreds of requests per second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = venv_python(builder_named("onnxruntime"), SILENT)
        script = CHECKOUT / "tests" / "tiny_encoder.py"
        subprocess.run([python, script, "BertModel", folder / "checkpoint"], check=True)
        _write_ids(folder / "ids.jsonl")
        model = {
            "task": "tensors",
            "checkpoint": "checkpoint",
            "engine": {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 16},
            "slo": {"e2e_p99_ms": 60},
        }
        load = {
            "model": "encoder",
            "kind": "tensors",
            "requests": [{"prompts": "ids.jsonl"}],
            "arrivals": {"process": "poisson", "rate": 10},
            "cool_down_seconds": 5,
        }
        record = {"models": {"encoder": model}, "loadtests": {"encoder": load}}
        values: dict[str, Sequence[Value]] = {
            "engine.instances": (1, 2),
            "engine.max_batch_size": (1, 4, 16),
            "max_queue_delay_microseconds": (0, 2000),
            "session.intra_op_num_threads": (1, 0),
        }
        with real(folder, record, values, seconds) as subject:
            yield subject


def _write_ids(file: Path) -> None:
    """Write sentences of one length, which fit into one batch."""
    with file.open("w", encoding="utf-8") as stream:
        for first in range(64):
            ids = [1 + first + i for i in range(ENCODER_TOKENS)]
            inputs = {
                name: {"shape": [1, ENCODER_TOKENS], "datatype": "INT64", "data": data}
                for name, data in (
                    ("input_ids", ids),
                    ("attention_mask", [1] * ENCODER_TOKENS),
                    ("token_type_ids", [0] * ENCODER_TOKENS),
                )
            }
            stream.write(json.dumps({"inputs": inputs}) + "\n")


REAL = {"encoder": encoder, "speller": speller}


def main() -> int:
    """Run the subjects and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subjects", nargs="*", help="simulated, encoder, speller [default: all]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one trial")
    arguments = parser.parse_args()
    known = ("simulated", *REAL)
    if unknown := set(arguments.subjects) - set(known):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    good = True
    for name in arguments.subjects or known:
        say(f"{name} ...")
        if name == "simulated":
            good &= compare(name, simulated())
            continue
        with REAL[name](arguments.seconds) as subject:
            good &= compare(name, subject)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
