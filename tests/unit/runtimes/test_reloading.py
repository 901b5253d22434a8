# SPDX-License-Identifier: Apache-2.0
"""The parts of a reload that need no server: names, wiring, what is asked, and in what order."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tritonctl.errors import ServerError, SettingsRefusedError
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.protocol.metrics import Metrics
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.standby import retarget_ensemble, steps_of, tag_models
from tritonctl.runtimes import model_swap
from tritonctl.runtimes import reload as reloading
from tritonctl.runtimes.embedded.installation import ServerInstallation
from tritonctl.runtimes.model_swap import active_requests, wait_until_idle
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, write_state
from tritonctl.smoke.inputs import valid_inputs
from tritonctl.smoke.single_request import SmokeResult, first_prompt

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

STEPS = ["speller_tokenizer", "speller_engine", "speller_detokenizer"]


def test_copies_are_wired_to_each_other(built: Sandbox) -> None:
    """Every name carries the tag; inputs, outputs and maps are as before."""
    planned = plan_repository(built.load()).models
    copies = {copy.name: parse_pbtxt(copy.config) for copy in tag_models(planned, "ab12")}
    assert sorted(copies) == sorted(f"{model.name}__ab12" for model in planned)
    ensemble = copies["speller__ab12"]
    assert steps_of(ensemble) == [f"{step}__ab12" for step in STEPS]
    before = next(parse_pbtxt(m.config) for m in planned if m.name == "speller")
    assert ensemble["input"] == before["input"]
    maps = [step["input_map"] for step in before["ensemble_scheduling"]["step"]]
    assert [step["input_map"] for step in ensemble["ensemble_scheduling"]["step"]] == maps


def test_the_ensemble_keeps_its_name_when_it_is_rewired(built: Sandbox) -> None:
    """Clients know it by that; the original is not changed."""
    planned = plan_repository(built.load()).models
    before = next(parse_pbtxt(m.config) for m in planned if m.name == "speller")
    after = retarget_ensemble(before, STEPS, "ab12")
    assert after["name"] == "speller"
    assert steps_of(after) == [f"{step}__ab12" for step in STEPS]
    assert steps_of(before) == STEPS
    assert steps_of({"name": "plain"}) == []


def test_what_is_under_way_is_counted_per_model() -> None:
    """Streams and waiting requests of the named models, nobody else's."""
    metrics = Metrics.parse(
        'tritonctl_active_streams{model="a_engine"} 2\n'
        'tritonctl_waiting_streams{model="a_engine"} 1\n'
        'tritonctl_active_streams{model="b_engine"} 9\n'
        'nv_inference_pending_request_count{model="a_tokenizer"} 4\n'
    )
    assert active_requests(metrics, ["a_engine", "a_tokenizer"]) == 7
    assert active_requests(metrics, []) == 0


def test_the_smallest_valid_input() -> None:
    """Open dimensions are 1, a batch of 1 where there are batches, optional tensors left out."""
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "ids", "data_type": "TYPE_INT64", "dims": ["-1", "3"]},
            {"name": "text", "data_type": "TYPE_STRING", "dims": ["1"]},
            {"name": "more", "data_type": "TYPE_FP32", "dims": ["1"], "optional": True},
        ],
    }
    inputs = valid_inputs(config)
    assert sorted(inputs) == ["ids", "text"]
    assert inputs["ids"].shape == (1, 1, 3)
    assert inputs["ids"].dtype == np.int64
    assert inputs["text"].tolist() == [[b"1"]]
    assert valid_inputs({"input": config["input"]})["ids"].shape == (1, 3)


def test_the_first_prompt_of_the_evaluation(built: Sandbox) -> None:
    """Relative to the project; some text where there is none or it cannot be read."""
    built.data["models"]["speller"]["evaluation"] = {"prompts": "prompts.jsonl"}
    project = built.load()
    assert first_prompt(project.models["speller"], project.root) == "1"
    (built.root / "prompts.jsonl").write_text('{"text_input": "7 in Thai:"}\n', encoding="utf-8")
    assert first_prompt(project.models["speller"], project.root) == "7 in Thai:"


ANSWER = SmokeResult("7", "seven")


class Busy:
    """Metrics that tell of so many streams, one look after the other, and the time of each."""

    def __init__(self, *streams: int) -> None:
        self._streams = iter(streams)
        self.now = 50.0
        self.looks = 0

    def read(self, url: str) -> Metrics:
        """One look."""
        assert url == "metrics"
        self.looks += 1
        return Metrics.parse(f'tritonctl_active_streams{{model="a"}} {next(self._streams)}\n')

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    def wait(self, seconds: float) -> int:
        """Streams that are left."""
        return wait_until_idle(
            "metrics",
            ["a"],
            seconds,
            read_metrics=self.read,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


@pytest.mark.parametrize(
    ("streams", "looks"), [((0, 0), 2), ((3, 0, 0), 3), ((0, 1, 0, 0), 4), ((0, 1, 0, 1, 0, 0), 6)]
)
def test_quiet_is_two_looks_running(streams: tuple[int, ...], looks: int) -> None:
    """One could miss a request that just came."""
    busy = Busy(*streams)
    assert busy.wait(100) == 0
    assert busy.looks == looks
    assert busy.now == 50 + 0.25 * (looks - 1)


def test_streams_that_do_not_end_are_counted() -> None:
    """The last look that the limit allows is told; all of it may be used."""
    busy = Busy(*range(9, 0, -1))
    assert busy.wait(1.0) == 4
    assert busy.now == 51.25


def embedded_server(
    pid: int, started: int, ports: tuple[int, int, int], models: list[str]
) -> EmbeddedServer:
    """A server as `up` recorded it."""
    grpc, http, metrics = ports
    return EmbeddedServer(
        pid=pid,
        process_started=started,
        address="127.0.0.1",
        grpc_port=grpc,
        http_port=http,
        metrics_port=metrics,
        repository="/r",
        models=models,
        settings="{}",
        shm_prefix="p_",
        exit_timeout_seconds=30,
    )


class Recorded:
    """In the place of model control, metrics and rendering: what a reload did, in order."""

    def __init__(self, serving: Mapping[str, Any]) -> None:
        self.done: list[str] = []
        self.serving = serving
        self.refused = ""
        self.kept: Collection[str] = ()
        self.streams = {"old": 0, "beside": 0}

    def config(self, model: str) -> Mapping[str, Any]:
        """What is served now."""
        assert _plain(model) in ("speller", "speller*")
        return self.serving

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """An ensemble with the first of its steps, where it is loaded with a configuration."""
        told = model if config is None else f"{model} → {', '.join(steps_of(config)[:1])}"
        self.done.append(f"load {_plain(told)}")
        if _plain(model) == self.refused:
            raise SettingsRefusedError("no", remedy="none")

    def wait_until_ready(self, models: Sequence[str]) -> None:
        """At once."""

    def unload(self, model: str, seconds: float) -> bool:
        """Whether it lets go."""
        assert seconds == 10
        self.done.append(f"unload {_plain(model)}")
        return _plain(model) not in self.kept

    def wait(self, url: str, steps: Sequence[str], seconds: float) -> int:
        """Until nothing is under way."""
        assert (url, seconds) == ("http://127.0.0.1:3/metrics", 30)
        self.done.append(f"await {' '.join(map(_plain, steps))}")
        return self.streams["beside" if "__" in steps[0] else "old"]

    def smoke(self, *_: object, streams: bool) -> SmokeResult:
        """Asks."""
        assert not streams  # as its configuration says
        self.done.append("ask")
        return ANSWER

    def render(self, project: Any, *_: object) -> SimpleNamespace:
        """The repository."""
        self.done.append("render")
        return SimpleNamespace(repository=project.repository)


def _plain(name: str) -> str:
    """Copies end in a tag that is another one each time: in its place a star."""
    return re.sub(r"__\w{6}$", "*", name)


class Reload:
    """A reload of `speller` on a server whose old version has a tokenizer of its own."""

    def __init__(
        self,
        sandbox: Sandbox,
        monkeypatch: pytest.MonkeyPatch,
        served: Sequence[str] = ("speller",),
    ) -> None:
        project = sandbox.load()
        plan = plan_repository(project)
        ensemble = next(parse_pbtxt(m.config) for m in plan.models if m.name == "speller")
        steps = ["speller_old", *STEPS[1:]]
        wired = ensemble["ensemble_scheduling"]["step"]
        old = [s | {"model_name": n} for s, n in zip(wired, steps, strict=True)]
        self.server = Recorded(ensemble | {"ensemble_scheduling": {"step": old}})
        self.files = ServerFiles.of(project)
        monkeypatch.setattr(model_swap, "wait_until_idle", self.server.wait)
        monkeypatch.setattr(model_swap, "smoke_model", self.server.smoke)
        monkeypatch.setattr(model_swap, "compile_python", lambda _: None)
        state = embedded_server(1, 1, (1, 2, 3), list(served))
        control: Any = self.server
        self.work = model_swap.ModelSwap(
            project,
            "speller",
            plan,
            state,
            self.files,
            control,
            Silent(),
            lambda: self.server.render(project, Silent(), plan.artefacts).repository,
        )

    def beside(self) -> list[str]:
        """Folders of the repository beside."""
        return sorted(folder.name for folder in self.files.standby.glob("*"))


@pytest.fixture
def reload(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Reload:
    """Ready to run."""
    return Reload(built, monkeypatch)


TOKENIZER, ENGINE, DETOKENIZER = STEPS
NEW_BESIDE = ["load speller*", "ask", "load speller → speller_tokenizer*", "unload speller*"]
OLD_GOES = [
    f"await speller_old {ENGINE} {DETOKENIZER}",
    f"unload {DETOKENIZER}",
    f"unload {ENGINE}",
    "unload speller_old",
]
FROM_REPOSITORY = [
    "render",
    f"load {TOKENIZER}",
    f"load {ENGINE}",
    f"load {DETOKENIZER}",
    f"load speller → {TOKENIZER}",
]
COPIES_GO = [f"unload {DETOKENIZER}*", f"unload {ENGINE}*", f"unload {TOKENIZER}*"]


def test_the_order_of_a_reload(reload: Reload) -> None:
    """What somebody may still use goes last: an ensemble before its steps, those from the end.

    The old version goes after the switch, the copies after the switch back.
    """
    answer, unloaded, abandoned = reload.work.run(smoke_test=True)
    assert reload.server.done == [
        *NEW_BESIDE,
        *OLD_GOES,
        *FROM_REPOSITORY,
        f"await {TOKENIZER}* {ENGINE}* {DETOKENIZER}*",
        *COPIES_GO,
        "unload speller*",
        *COPIES_GO,
    ]
    assert (answer, unloaded, abandoned) == (ANSWER, ["speller_old"], 0)
    assert reload.work.unreleased == []
    assert reload.beside() == []


def test_what_asks_the_ensemble_by_its_name_has_no_copy(
    built: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unary model is loaded last, if the project has it; unloaded, if it has it no more."""
    built.serving["unary"] = True
    reload = Reload(built, monkeypatch)
    assert reload.work.run(smoke_test=True)[1] == ["speller_old"]
    done = reload.server.done
    assert done[done.index(FROM_REPOSITORY[-1]) + 1] == "load speller_unary"
    assert "load speller_unary*" not in done

    built.serving["unary"] = False
    without = Reload(built, monkeypatch, served=["speller", "speller_unary"])
    assert without.work.run(smoke_test=True)[1] == ["speller_old", "speller_unary"]
    assert without.server.done[-1] == "unload speller_unary"


def test_unasked(reload: Reload) -> None:
    """No smoke request, everything else as ever."""
    answer, _, _ = reload.work.run(smoke_test=False)
    assert answer is None
    assert reload.server.done[:2] == [NEW_BESIDE[0], NEW_BESIDE[2]]


def test_what_was_not_awaited_and_what_is_held_is_told(reload: Reload) -> None:
    """Streams of both switches together; models by name, each time that they were not let go."""
    reload.server.streams = {"old": 2, "beside": 3}
    reload.server.kept = ("speller_old", ENGINE)
    _, _, abandoned = reload.work.run(smoke_test=True)
    assert abandoned == 5
    assert reload.work.unreleased == [ENGINE, "speller_old"]


def test_a_new_version_that_does_not_load(reload: Reload) -> None:
    """Its copies go, their ensemble first; the old version stays."""
    reload.server.refused = "speller*"
    with pytest.raises(ServerError, match="the previous version of speller keeps"):
        reload.work.run(smoke_test=True)
    assert reload.server.done == ["load speller*", "unload speller*", *COPIES_GO]
    assert reload.beside() == []


def test_a_repository_that_does_not_load(reload: Reload) -> None:
    """After the switch the copies serve, and stay."""
    reload.server.refused = ENGINE
    with pytest.raises(ServerError, match=r"the new version of speller, from .* keeps serving"):
        reload.work.run(smoke_test=True)
    assert reload.server.done == [*NEW_BESIDE, *OLD_GOES, *FROM_REPOSITORY[:3]]
    assert len(reload.beside()) == 3


def test_what_a_killed_reload_left_is_swept_first(reload: Reload) -> None:
    """The ensemble before its steps; what serves, stays."""
    for name in ("speller_engine__0ld000", "speller__0ld000", "speller_old"):
        (reload.files.standby / name).mkdir(parents=True)
    reload.work.run(smoke_test=True)
    assert reload.server.done[:3] == ["unload speller*", f"unload {ENGINE}*", NEW_BESIDE[0]]


def test_a_model_that_is_no_ensemble(reload: Reload, built: Sandbox) -> None:
    """Triton swaps it well by itself: no switch to the copy, nothing to retire."""
    plain = {"name": "speller", "backend": "python"}
    reload.server.serving = plain
    reload.work._planned = {"speller": plain}
    assert reload.work.run(smoke_test=True) == (ANSWER, [], 0)
    expected = ["load speller*", "ask", "render", "load speller → "]
    assert [done for done in reload.server.done if "unload" not in done] == expected


def test_steps_that_the_model_has_no_more_are_unloaded(reload: Reload) -> None:
    """A model that was an ensemble, or stood behind a cache, and is served alone now."""
    reload.work._planned = {"speller": {"name": "speller", "backend": "python"}}
    _, gone, left = reload.work.run(smoke_test=True)
    assert (set(gone), left) == ({"speller_old", ENGINE, DETOKENIZER}, 0)
    done = reload.server.done
    switched = done.index("load speller → ")
    assert done[switched + 1 : switched + 1 + len(OLD_GOES)] == OLD_GOES


def test_a_server_that_does_not_answer(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process lives and its port is closed: the advice is about reloading, not tuning."""
    project = built.load()
    files = ServerFiles.of(project)
    pid = os.getpid()
    started = process_start_time(pid) or 0
    models = [model.name for model in plan_repository(project).models]
    write_state(files, embedded_server(pid, started, (1, 1, 1), models))
    specification = {"argv": ["tritonserver", f"--model-repository={files.standby}"]}
    files.specification.write_text(json.dumps(specification))
    installed = ServerInstallation(Path("tritonserver"), Path("backends"), Path("caches"), {})
    monkeypatch.setattr("tritonctl.runtimes.reload.install_server", lambda *_: installed)
    with pytest.raises(ServerError, match=r"no answer from Triton at 127\.0\.0\.1:1") as caught:
        reloading.reload(project, "speller", Silent())
    assert "`tritonctl reload speller` again" in caught.value.remedy
    assert "tune" not in caught.value.remedy
