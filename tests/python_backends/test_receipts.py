# SPDX-License-Identifier: Apache-2.0
"""The page of receipts: who is taken for gone, and who never is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from textlib.scheduling import acknowledgements as receipts
from textlib.scheduling.acknowledgements import (
    PAGE_STREAMS,
    ReceiptPage,
    ReceiptWatch,
    ReceiptWriter,
    server_prefix,
    starvation_seconds,
)

PREFIX = "tritonctl_unit_"
KEY_OF_NOBODY = 12345
TICK = 0.02


class Clock:
    """Time that tests move, and how much of it threads waited for a processor."""

    now = 100.0
    starved = 3.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder instead of /dev/shm."""
    monkeypatch.setattr(receipts, "SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def clock() -> Clock:
    """Stands still."""
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Iterator[ReceiptWatch]:
    """The engine's side."""
    watch = ReceiptWatch(ReceiptPage.create(PREFIX), clock, lambda: clock.starved)
    yield watch
    watch.close()


@pytest.fixture
def writer(watch: ReceiptWatch) -> Iterator[ReceiptWriter]:
    """The detokenizer's side, which has seen the page in an earlier stream."""
    writer = ReceiptWriter(PREFIX)
    with writer.batch():
        writer.acknowledge(watch.key, 999, 0)
    yield writer
    writer.close()


def look(watch: ReceiptWatch, clock: Clock, seconds: float) -> list[int]:
    """Look every TICK; who was gone at the last look."""
    gone: list[int] = []
    for _ in range(round(seconds / TICK)):
        clock.now += TICK
        gone = watch.departed_streams()
    return gone


def receive(writer: ReceiptWriter, watch: ReceiptWatch, stream_id: int, index: int) -> None:
    """A batch of one response."""
    with writer.batch():
        writer.acknowledge(watch.key, stream_id, index)


def test_silence_is_departure(watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock) -> None:
    """After a quarter of a second, not before; also when nothing ever arrived."""
    watch.watch(1)
    watch.watch(2)
    watch.record_send(1, 0)
    receive(writer, watch, 1, 0)
    watch.record_send(1, 1)
    watch.record_send(2, 0)
    assert look(watch, clock, 0.2) == []
    assert look(watch, clock, 0.1) == [1, 2]


def test_who_acknowledges_stays(watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock) -> None:
    """Each receipt ends the silence, even if more is under way."""
    watch.watch(1)
    for index in range(20):
        watch.record_send(1, index)
    for index in range(19):
        assert look(watch, clock, 0.2) == []
        receive(writer, watch, 1, index)
    assert look(watch, clock, 0.3) == [1]


def test_a_stream_without_responses_is_not_silent(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """An engine may take long to make a token."""
    watch.watch(1)
    assert look(watch, clock, 60) == []
    watch.record_send(1, 0)
    receive(writer, watch, 1, 0)
    assert look(watch, clock, 60) == []


def test_nobody_is_gone_before_a_detokenizer_reads_the_page(
    watch: ReceiptWatch, clock: Clock
) -> None:
    """One that does not know about receipts, or that is still starting."""
    watch.watch(1)
    watch.record_send(1, 0)
    assert look(watch, clock, 60) == []


def test_a_long_batch_is_no_silence(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """The detokenizer works on something else."""
    watch.watch(1)
    watch.record_send(1, 0)
    with writer.batch():
        assert look(watch, clock, 30) == []
    assert look(watch, clock, 0.1) == []
    assert look(watch, clock, 0.3) == [1]


def test_a_backlog_is_no_silence(watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock) -> None:
    """Older responses of others keep arriving; idle moments between batches prove nothing."""
    watch.watch(1)
    watch.watch(2)
    for index in range(200):
        watch.record_send(2, index)
    watch.record_send(1, 0)
    for index in range(200):
        receive(writer, watch, 2, index)
        assert look(watch, clock, 0.02) == []
    receive(writer, watch, 1, 0)
    assert look(watch, clock, 1) == []


def test_later_responses_of_others_betray_who_is_gone(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """Under load the detokenizer is never idle, but it has passed the missing one."""
    watch.watch(1)
    watch.watch(2)
    watch.record_send(1, 0)
    gone: list[int] = []
    for index in range(15):
        watch.record_send(2, index)
        receive(writer, watch, 2, index)
        gone = look(watch, clock, 0.02)
    assert gone == [1]


def test_a_starved_engine_sees_no_silence(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """A process that slept for five seconds does not know what it missed."""
    watch.watch(1)
    watch.record_send(1, 0)
    watch.departed_streams()
    clock.now += 5
    assert watch.departed_streams() == []
    receive(writer, watch, 1, 0)
    assert look(watch, clock, 1) == []


def test_late_looks_are_no_silence(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """A fifth counts of the time during which threads waited for a processor."""
    watch.watch(1)
    watch.record_send(1, 0)
    for _ in range(28):  # 1.12 s, and threads waited all the time
        clock.now += 0.04
        clock.starved += 0.04
        assert watch.departed_streams() == []
    receive(writer, watch, 1, 0)
    assert look(watch, clock, 1) == []


def test_a_starved_engine_still_notices_who_is_gone(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """It takes five times as long."""
    watch.watch(1)
    watch.record_send(1, 0)
    gone: list[list[int]] = []
    for _ in range(66):
        clock.now += TICK
        clock.starved += TICK
        gone.append(watch.departed_streams())
    assert gone[60] == []
    assert gone[65] == [1]


def test_seconds_starved(tmp_path: Path) -> None:
    """Of the first file that the kernel has; without one nothing is subtracted."""
    ours, machine = tmp_path / "cpu.pressure", tmp_path / "cpu"
    assert starvation_seconds([ours, machine]) == 0.0
    lines = "some avg10=0.10 avg60=4.89 avg300=27.37 total={}\nfull avg10=0.00 total=9\n"
    machine.write_text(lines.format(1500000))
    assert starvation_seconds([ours, machine]) == 1.5
    ours.write_text("")
    assert starvation_seconds([ours, machine]) == 1.5
    ours.write_text(lines.format(500000))
    assert starvation_seconds([ours, machine]) == 0.5


def test_queue_delay_of_the_detokenizer_is_allowed_for(watch: ReceiptWatch, clock: Clock) -> None:
    """An operator may let Triton hold responses back to batch them."""
    writer = ReceiptWriter(PREFIX, queue_delay_ms=400)
    receive(writer, watch, 999, 0)
    watch.watch(1)
    watch.record_send(1, 0)
    assert look(watch, clock, 0.9) == []
    assert look(watch, clock, 0.3) == [1]
    writer.close()


def test_streams_that_share_a_word_are_not_confused(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """A stream that outlives 16,384 others loses its place, never its life."""
    watch.watch(1)
    watch.record_send(1, 0)
    watch.watch(1 + PAGE_STREAMS)
    watch.record_send(1 + PAGE_STREAMS, 0)
    assert look(watch, clock, 1) == [1 + PAGE_STREAMS]


def test_what_is_under_way(watch: ReceiptWatch, writer: ReceiptWriter) -> None:
    """Sent and not received; nothing where nobody acknowledges."""
    watch.watch(1)
    assert watch.in_flight(1) == 0
    watch.record_send(1, 0)
    watch.record_send(1, 1)
    assert watch.in_flight(1) == 2
    receive(writer, watch, 1, 0)
    assert watch.in_flight(1) == 1
    receive(writer, watch, 1, 1)
    assert watch.in_flight(1) == watch.in_flight(2) == 0


def test_nothing_is_under_way_without_a_detokenizer(watch: ReceiptWatch) -> None:
    """A stream must not wait for receipts that nobody writes."""
    watch.watch(1)
    watch.record_send(1, 0)
    assert watch.in_flight(1) == 0


def test_finished_streams_are_forgotten(
    watch: ReceiptWatch, writer: ReceiptWriter, clock: Clock
) -> None:
    """Nobody waits for the receipt of a final response."""
    watch.watch(1)
    watch.record_send(1, 0)
    watch.unwatch(1)
    watch.record_send(1, 1)
    assert look(watch, clock, 1) == []


@pytest.mark.parametrize("key", [0, -1, KEY_OF_NOBODY])
def test_unknown_pages_are_ignored(writer: ReceiptWriter, key: int) -> None:
    """Anybody may call a detokenizer with any key."""
    writer.acknowledge(key, 1, 0)
    writer.acknowledge(key, -1, -1)


def test_page_of_another_size_is_ignored(shared_memory: Path, writer: ReceiptWriter) -> None:
    """It is not ours."""
    (shared_memory / f"{PREFIX}receipts_{KEY_OF_NOBODY:08x}").write_bytes(b"x")
    writer.acknowledge(KEY_OF_NOBODY, 1, 0)


def test_nothing_is_left_of_a_closed_page(shared_memory: Path) -> None:
    """The file carries the server's prefix, so that a crash is cleaned up too, and goes."""
    page = ReceiptPage.create(PREFIX)
    [file] = shared_memory.iterdir()
    assert file.name.startswith(PREFIX)
    page.remove()
    assert list(shared_memory.iterdir()) == []


def test_many_pages_do_not_pile_up(writer: ReceiptWriter) -> None:
    """Engines that were reloaded leave theirs behind: the detokenizer lets go."""
    for _ in range(40):
        page = ReceiptPage.create(PREFIX)
        writer.acknowledge(page.key, 1, 0)
        assert page.received_count(1) == 1
        page.remove()
    assert len(writer._pages) <= 16


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        (
            ["stub", "/m/1/model.py", "tritonctl_91_5dd05b68-de4e-4719-94ef-b5db5aac9d87"],
            "tritonctl_91_",
        ),
        (["stub", "/m/1/model.py", "a/b_5dd05b68-de4e-4719-94ef-b5db5aac9d87"], None),
        (["python", "x.py"], None),
    ],
)
def test_prefix_of_the_server(tmp_path: Path, arguments: list[str], prefix: str | None) -> None:
    """Read off the stub's own command line; anything else gets Triton's default."""
    command_line = tmp_path / "cmdline"
    command_line.write_bytes("\0".join(arguments).encode() + b"\0")
    assert server_prefix(command_line) == (prefix or "triton_python_backend_shm_region_")
