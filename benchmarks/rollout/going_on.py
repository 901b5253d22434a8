# SPDX-License-Identifier: Apache-2.0
"""A release with half of the users is taken back amid its streams: what each kind of client reads.

The load generator and our client go on at Envoy by `resume_ids`; whoever streams from the OpenAI
API does nothing: the frontend of the release that was taken back goes on at stable's Triton.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench import MODEL, PROMPTS, SILENT
from load import USERS, Load
from planting import USER_HEADER
from rig import Rig
from tritonctl import AsyncTritonClient, SamplingParameters
from tritonctl.gateway.placement import gateway_of
from tritonctl.rollout.traffic import Traffic
from tritonctl.runtimes.slot_servers import (
    gateway_placement,
    routes_folder,
    stable_slot,
    start_candidate,
    stop_slot,
)

LONG, STREAMS = 220, 24
_PATIENCE = 60.0
_SAMPLING = SamplingParameters(max_tokens=LONG, end_id=-1)


@dataclass
class Read:
    """What one client has read of one answer."""

    prompt: str
    text: str = ""
    tokens: int = 0
    resumes: int = 0
    versions: tuple[str, ...] = ()
    error: str = ""
    arrivals: list[float] = field(default_factory=list)

    @property
    def pause(self) -> float:
        """The longest between two pieces, seconds."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)


def table(rig: Rig, folder: Path, rounds: int = 4) -> Iterator[str]:
    """A row for each kind of client, over all rounds."""
    rows: dict[str, list[Read]] = {"our client, gRPC": [], "OpenAI stream": []}
    texts = asyncio.run(_whole(rig))
    load = Load(rig.url, folder / "going-on", rate=8)
    seconds = []
    for _ in range(rounds):
        candidate = stable_slot(rig.project).opposite
        start_candidate(rig.project, rig.twin, SILENT)
        traffic = Traffic(
            routes_folder(rig.project),
            gateway_of(rig.project),
            gateway_placement(rig.project),
            rig.project.rollout,
        )
        traffic.move(50.0)
        time.sleep(3.0)
        grpc_reads, sse_reads, took = asyncio.run(_round(rig, traffic, candidate))
        rows["our client, gRPC"] += grpc_reads
        rows["OpenAI stream"] += sse_reads
        seconds.append(took)
    asked = load.stop()
    yield (
        "| client | streams | of them amid the bad release | went on at stable | failed "
        "| other text or tokens than unbroken | longest pause, s |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, reads in rows.items():
        twin = str(rig.twin.number)
        amid = [each for each in reads if twin in each.versions]
        went_on = sum(each.resumes > 0 for each in amid) if "OpenAI" not in name else _in_log(rig)
        wrong = [
            e for e in reads if not e.error and (e.text != texts[e.prompt] or e.tokens != LONG)
        ]
        yield _line(
            name, len(reads), len(amid), str(went_on), sum(bool(e.error) for e in reads),
            len(wrong), max((each.pause for each in reads), default=0.0),
        )  # fmt: skip
    twin = str(rig.twin.number)
    yield _line(
        "load generator", len(asked), sum(each.version == twin for each in asked),
        str(sum(each.resumes > 0 for each in asked)), sum(each.failed for each in asked),
        sum(each.lost > 0 for each in asked), max((e.end - e.sent for e in asked), default=0.0),
    )  # fmt: skip
    yield ""
    yield f"Users back and the bad servers killed within {max(seconds):.2f} s of the call."


def _line(
    name: str, streams: int, amid: int, went_on: str, failed: int, wrong: int, pause: float
) -> str:
    return f"| {name} | {streams} | {amid} | {went_on} | {failed} | {wrong} | {pause:.2f} |"


def _in_log(rig: Rig) -> int:
    """Answers that frontends have continued elsewhere, by their access logs."""
    files = rig.project.state.glob("server*/front*.log")
    logs = [file.read_text(encoding="utf-8") for file in files]
    return sum('"resumes"' in line for text in logs for line in text.splitlines())


def _prompts() -> list[str]:
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()[:STREAMS]
    return [json.loads(line)["text_input"] for line in lines]


async def _whole(rig: Rig) -> dict[str, str]:
    """What stable says, unbroken."""
    async with AsyncTritonClient(rig.url) as client:
        answers = [await client.generate(MODEL, prompt, _SAMPLING) for prompt in _prompts()]
    return dict(zip(_prompts(), (answer.text for answer in answers), strict=True))


async def _round(
    rig: Rig, traffic: Traffic, candidate: object
) -> tuple[Sequence[Read], Sequence[Read], float]:
    prompts = _prompts()
    own, openai = [Read(prompt) for prompt in prompts], [Read(prompt) for prompt in prompts]
    begun = asyncio.Event()
    # A thread for each stream, and for whoever takes the release back.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(STREAMS + 4))

    async def one(number: int, read: Read) -> None:
        headers = {USER_HEADER: f"user-{number * 7 % USERS}"}
        async with AsyncTritonClient(rig.url, resume_on=[rig.url] * 5, headers=headers) as client:
            try:
                async for chunk in client.stream(MODEL, read.prompt, _SAMPLING, timeout=_PATIENCE):
                    _note(read, chunk.text, chunk.model_version)
                    read.tokens, read.resumes = chunk.num_output_tokens, chunk.resumes
                    if sum(len(each.arrivals) > 3 for each in own) * 3 > len(own):
                        begun.set()
            except Exception as error:
                read.error = str(error)

    async def back() -> float:
        await asyncio.wait_for(begun.wait(), _PATIENCE)
        began = time.monotonic()
        await asyncio.to_thread(traffic.roll_back)
        await asyncio.to_thread(stop_slot, rig.project, candidate, at_once=True)  # type: ignore[arg-type]
        return time.monotonic() - began

    streams = [one(number, read) for number, read in enumerate(own)]
    if rig.project.frontend is not None:
        streams += [
            asyncio.to_thread(_from_frontend, rig, number, read)
            for number, read in enumerate(openai)
        ]
    took, *_ = await asyncio.gather(back(), *streams)
    return own, openai if rig.project.frontend is not None else [], took


def _note(read: Read, text: str, version: str) -> None:
    read.arrivals.append(time.monotonic())
    read.text += text
    if version and version not in read.versions:
        read.versions = (*read.versions, version)


def _from_frontend(rig: Rig, number: int, read: Read) -> None:
    """Read an answer's server-sent events; the header says who began it."""
    connection = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=_PATIENCE)
    body = {
        "model": MODEL, "prompt": read.prompt, "max_tokens": LONG, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"content-type": "application/json", USER_HEADER: f"user-{number * 7 % USERS}"}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        version = answer.getheader("x-tritonctl-release") or ""
        for line in answer:
            data = line.removeprefix(b"data: ").strip()
            if line.startswith(b"data: ") and data != b"[DONE]":
                event = json.loads(data)
                if "error" in event:
                    read.error = str(event["error"]["message"])
                    return
                _note(read, "".join(each["text"] for each in event["choices"]), version)
                if event.get("usage"):
                    read.tokens = event["usage"]["completion_tokens"]
    except (OSError, ValueError, http.client.HTTPException) as error:
        read.error = str(error)
    finally:
        connection.close()
