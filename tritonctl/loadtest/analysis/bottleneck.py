# SPDX-License-Identifier: Apache-2.0
"""Name the bottleneck of a load test in one sentence, from its figures."""

from __future__ import annotations

from tritonctl.loadtest.analysis.summary import (
    GeneratorFigures,
    ModelLoadFigures,
    ServerLoadFigures,
)

_GENERATOR_BUSY = 0.8
_MACHINE_BUSY = 0.9
_WAITING_SHARE = 0.5
_FULL_BATCH = 0.9
_BUSY_INSTANCES = 0.7
_IDLE = 0.5
_ENGINE = "_engine"
_WAITING_STREAMS, _ACTIVE_STREAMS = "tritonctl_waiting_streams", "tritonctl_active_streams"


def limited_by(
    generator: GeneratorFigures, server: ServerLoadFigures | None, *, sent_late: bool
) -> str:
    """Return the first bottleneck of: generator, engine batch, CPU, queue, model.

    sent_late: whether the generator certainly sent late.
    """
    if (generator.cpu_mean or 0.0) > _GENERATOR_BUSY:
        return f"the generator's CPU: it used {_percent(generator.cpu_mean or 0.0)} of a core"
    cpu_limit_text = _cpu_limit(server) if server else None
    if sent_late:
        sent = f"sent requests up to {generator.send_lag_p99_ms or 0.0:.3g} ms late (P99)"
        return (
            f"{cpu_limit_text}; the generator {sent}"
            if cpu_limit_text
            else f"the generator: it {sent}"
        )
    if server is None:
        return "unknown: the server's metrics were not sampled"
    return (
        _batch_limit(server, cpu_limit_text)
        or _cpu_limit_with_queue(server, cpu_limit_text)
        or _queue_limit(server)
        or _idle_note(server)
        or _busiest_model(server)
    )


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _cpu_limit(server: ServerLoadFigures) -> str | None:
    """Return a text if the server or other processes use up the CPU, else None."""
    cores = server.host_cpus
    server_usage = (
        f"the server used {server.cpu:.1f} of {cores} cores" if server.cpu and cores else None
    )
    if (server.host_cpu or 0.0) > _MACHINE_BUSY:
        usage = f"the machine's CPU: {_percent(server.host_cpu or 0.0)} in use"
        return f"{usage}, {server_usage}" if server_usage else usage
    if server_usage and (server.cpu or 0.0) > _MACHINE_BUSY * (cores or 1):
        return f"the machine's CPU: {server_usage}"
    return None


def _mean_gauge(server: ServerLoadFigures, name: str) -> float | None:
    """Sum a gauge's means over the models that publish it."""
    means = [g.mean for key, g in server.engine.items() if key.partition("{")[0] == name]
    return sum(means) if means else None


def _engine_name(server: ServerLoadFigures) -> str:
    """Return the name of the engine step, or of the only model."""
    names = list(server.models)
    if len(names) == 1:
        return names[0]
    return next((name for name in names if name.endswith(_ENGINE)), "the engine")


def _batch_limit(server: ServerLoadFigures, cpu_limit_text: str | None) -> str | None:
    """Return a text if requests wait inside a text engine, invisible to Triton, else None."""
    waiting, active = (_mean_gauge(server, name) for name in (_WAITING_STREAMS, _ACTIVE_STREAMS))
    if waiting is None or waiting < 1:
        return None
    waits = f"{_engine_name(server)}: {waiting:.1f} requests waited for a slot in its batch"
    waits += f", which held {active:.1f}" if active is not None else ""
    return f"{waits}; {cpu_limit_text}" if cpu_limit_text else waits


def _worst_queue(server: ServerLoadFigures) -> tuple[str, ModelLoadFigures] | None:
    """Return the step with the most waiting, among steps that wait longer than they work."""
    waiting = {
        name: model
        for name, model in server.models.items()
        if model.share
        and model.request_ms > 0
        and model.queue_ms / model.request_ms > _WAITING_SHARE
    }
    if not waiting:
        return None
    name = max(waiting, key=lambda name: waiting[name].queue_ms * waiting[name].rate)
    return name, waiting[name]


def _cpu_limit_with_queue(server: ServerLoadFigures, cpu_limit_text: str | None) -> str | None:
    """Return the CPU limit, with the queue where it shows."""
    worst = _worst_queue(server)
    if cpu_limit_text is None or worst is None:
        return cpu_limit_text
    name, model = worst
    return (
        f"{cpu_limit_text}; requests waited most in the queue of {name}, "
        f"{model.queue_ms:.3g} ms each"
    )


def _queue_limit(server: ServerLoadFigures) -> str | None:
    """Return the longest queue in front of busy instances; idle instances do not limit."""
    worst = _worst_queue(server)
    if worst is None:
        return None
    name, model = worst
    occupied = _instance_usage(model)
    if occupied is not None and occupied < _BUSY_INSTANCES:
        return None
    waits = f"{name}: requests waited {_percent(model.queue_ms / model.request_ms)} of their time"
    if model.batch_factor is None or not model.max_batch_size:
        return f"{waits} in its queue"
    batch = f"{model.batch_factor:.1f} of {model.max_batch_size}"
    if model.batch_factor >= _FULL_BATCH * model.max_batch_size:
        return f"{waits} in its queue while its batch was full ({batch})"
    return f"{waits} in its queue with a partly filled batch ({batch}): its instances were busy"


def _idle_note(server: ServerLoadFigures) -> str | None:
    busy = [
        b for b in (_instance_usage(m) for m in server.models.values() if m.share) if b is not None
    ]
    if server.cpu is not None and server.host_cpus:
        busy.append(server.cpu / server.host_cpus)
    if not busy or max(busy) >= _IDLE:
        return None
    return f"nothing: the server was idle {_percent(1 - max(busy))} of the time"


def _instance_usage(model: ModelLoadFigures) -> float | None:
    """Return the share of time that a model's instances worked; None if unknown."""
    if engine := model.engine:
        # Little's law gives the concurrent requests; the engine works while there are any.
        at_once = model.rate * (engine.prefill_ms + engine.decode_ms) / 1000
        return min(at_once / (model.instances or 1), 1.0)
    if not model.batch_factor or model.decoupled:
        return None
    work = (model.input_ms + model.infer_ms + model.output_ms) / 1000 / model.batch_factor
    return min(model.rate * work / (model.instances or 1), 1.0)


def _busiest_model(server: ServerLoadFigures) -> str:
    """Return the model that computes longest, for a server without queues."""
    active = _mean_gauge(server, _ACTIVE_STREAMS)
    if active:
        # Triton counts a decoupled model's time until it accepts the request, not its work.
        return f"{_engine_name(server)}: its speed: none waited, {active:.1f} were in its batch"
    steps = {name: m for name, m in server.models.items() if m.share and m.rate > 0}
    if not steps:
        return "unknown: the server answered no request while it was sampled"
    unmeasured = [name for name, model in steps.items() if model.total_ms is None]
    if unmeasured:
        return f"unknown: {unmeasured[0]} is decoupled and does not publish its response times"
    name = max(steps, key=lambda name: steps[name].share or 0.0)
    work = f"{name}: {_percent(steps[name].share or 0.0)} of the time of the steps is spent in it"
    occupied = _instance_usage(steps[name])
    return work if occupied is None else f"{work}, its instances work {_percent(occupied)} of it"
