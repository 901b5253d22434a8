# SPDX-License-Identifier: Apache-2.0
"""What held a load test's rate or latency back: one sentence, derived from the figures."""

from __future__ import annotations

from tritonctl.loadtest.analysis.summary import GeneratorFigures, ModelFigures, ServerFigures

_GENERATOR_BUSY = 0.8
_MACHINE_BUSY = 0.9
_WAITING = 0.5
_FULL = 0.9
_OCCUPIED = 0.7
_IDLE = 0.5
_ENGINE = "_engine"
_WAITING_STREAMS, _ACTIVE_STREAMS = "tritonctl_waiting_streams", "tritonctl_active_streams"


def limited_by(generator: GeneratorFigures, server: ServerFigures | None, *, late: bool) -> str:
    """The first that applies of: the generator, an engine's batch, the CPU, a queue, a model.

    late: whether the generator certainly sent later than it may.
    """
    if (generator.cpu_mean or 0.0) > _GENERATOR_BUSY:
        return f"the generator's CPU: it used {_percent(generator.cpu_mean or 0.0)} of a core"
    machine = _machine(server) if server else None
    if late:
        sent = f"sent requests up to {generator.send_lag_p99_ms or 0.0:.3g} ms late (P99)"
        return f"{machine}; the generator {sent}" if machine else f"the generator: it {sent}"
    if server is None:
        return "unknown: the server's metrics were not sampled"
    return (
        _streams(server, machine)
        or _with_queue(server, machine)
        or _queue(server)
        or _idle(server)
        or _computing(server)
    )


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _machine(server: ServerFigures) -> str | None:
    """Whether the CPU is used up, by the server or by whatever else runs beside it."""
    cores = server.host_cpus
    own = f"the server used {server.cpu:.1f} of {cores} cores" if server.cpu and cores else None
    if (server.host_cpu or 0.0) > _MACHINE_BUSY:
        usage = f"the machine's CPU: {_percent(server.host_cpu or 0.0)} of it were in use"
        return f"{usage}, {own}" if own else usage
    if own and (server.cpu or 0.0) > _MACHINE_BUSY * (cores or 1):
        return f"the machine's CPU: {own}"
    return None


def _gauge(server: ServerFigures, name: str) -> float | None:
    """Its mean, over the models that publish it."""
    means = [g.mean for key, g in server.engine.items() if key.partition("{")[0] == name]
    return sum(means) if means else None


def _engine(server: ServerFigures) -> str:
    """The step that computes, or the only model."""
    names = list(server.models)
    if len(names) == 1:
        return names[0]
    return next((name for name in names if name.endswith(_ENGINE)), "the engine")


def _streams(server: ServerFigures, machine: str | None) -> str | None:
    """A text engine takes requests at once and lets them wait inside, where Triton cannot see."""
    waiting, active = (_gauge(server, name) for name in (_WAITING_STREAMS, _ACTIVE_STREAMS))
    if waiting is None or waiting < 1:
        return None
    waits = f"{_engine(server)}: {waiting:.1f} requests waited for a place in its batch"
    waits += f", which held {active:.1f}" if active is not None else ""
    return f"{waits}; {machine}" if machine else waits


def _longest_queue(server: ServerFigures) -> tuple[str, ModelFigures] | None:
    """The step with the most waiting, where requests spend more time waiting than in work."""
    waiting = {
        name: model
        for name, model in server.models.items()
        if model.share and model.request_ms > 0 and model.queue_ms / model.request_ms > _WAITING
    }
    if not waiting:
        return None
    name = max(waiting, key=lambda name: waiting[name].queue_ms * waiting[name].rate)
    return name, waiting[name]


def _with_queue(server: ServerFigures, machine: str | None) -> str | None:
    """A CPU that is used up, and where its lack shows."""
    longest = _longest_queue(server)
    if machine is None or longest is None:
        return machine
    name, model = longest
    return f"{machine}; requests waited most in the queue of {name}, {model.queue_ms:.3g} ms each"


def _queue(server: ServerFigures) -> str | None:
    """A queue in front of instances that are busy; a short one before idle ones limits nothing."""
    longest = _longest_queue(server)
    if longest is None:
        return None
    name, model = longest
    occupied = _occupied(model)
    if occupied is not None and occupied < _OCCUPIED:
        return None
    waits = f"{name}: requests waited {_percent(model.queue_ms / model.request_ms)} of their time"
    if model.batch_factor is None or not model.max_batch_size:
        return f"{waits} in its queue"
    batch = f"{model.batch_factor:.1f} of {model.max_batch_size}"
    if model.batch_factor >= _FULL * model.max_batch_size:
        return f"{waits} in its queue while its batch was full ({batch})"
    return (
        f"{waits} in its queue although its batch was not full ({batch}): its instances were busy"
    )


def _idle(server: ServerFigures) -> str | None:
    busy = [b for b in (_occupied(m) for m in server.models.values() if m.share) if b is not None]
    if server.cpu is not None and server.host_cpus:
        busy.append(server.cpu / server.host_cpus)
    if not busy or max(busy) >= _IDLE:
        return None
    return f"nothing: the server was idle {_percent(1 - max(busy))} of the time"


def _occupied(model: ModelFigures) -> float | None:
    """The share of time that a model's instances worked: every request of a batch counts it."""
    if own := model.engine:
        # By Little's law the requests in it at once; alone or not, it works while there are any.
        at_once = model.rate * (own.prefill_ms + own.decode_ms) / 1000
        return min(at_once / (model.instances or 1), 1.0)
    if not model.batch_factor or model.decoupled:
        return None
    work = (model.input_ms + model.infer_ms + model.output_ms) / 1000 / model.batch_factor
    return min(model.rate * work / (model.instances or 1), 1.0)


def _computing(server: ServerFigures) -> str:
    """Nothing waits: what takes the time is the work itself."""
    active = _gauge(server, _ACTIVE_STREAMS)
    if active:
        # Triton counts a decoupled model's time until it has taken the request, not its work.
        return f"{_engine(server)}: its own speed: none waited, {active:.1f} were in its batch"
    steps = {name: m for name, m in server.models.items() if m.share and m.rate > 0}
    if not steps:
        return "unknown: the server answered no request while it was sampled"
    silent = [name for name, model in steps.items() if model.whole_ms is None]
    if silent:
        return f"unknown: {silent[0]} is decoupled, and does not publish how long its answers take"
    name = max(steps, key=lambda name: steps[name].share or 0.0)
    work = f"{name}: {_percent(steps[name].share or 0.0)} of the time of the steps is spent in it"
    occupied = _occupied(steps[name])
    return work if occupied is None else f"{work}, its instances work {_percent(occupied)} of it"
