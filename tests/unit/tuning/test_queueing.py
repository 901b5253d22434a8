# SPDX-License-Identifier: Apache-2.0
"""The queueing estimate against closed forms and against the simulation."""

from __future__ import annotations

import math

import pytest

from tests.unit.tuning.simulated import Machine, true_capacity
from tritonctl.tuning.queueing import (
    BatchServer,
    Decoder,
    ServiceCurve,
    capacity,
    decoder_capacity,
    erlang_c,
    fit_curve,
    response_p99,
    waiting_p99,
)


def test_the_curve_is_found_in_exact_points() -> None:
    """A straight line comes back."""
    curve = fit_curve([(b, 0.008 + 0.001 * b) for b in (1, 2, 5, 9)])
    assert curve is not None
    assert (curve.fixed, curve.each) == pytest.approx((0.008, 0.001))


def test_the_curve_is_never_negative() -> None:
    """Noise must not make batches free, or the first request cheaper than nothing."""
    falling = fit_curve([(1, 0.010), (8, 0.009)])
    steep = fit_curve([(1, 0.001), (8, 0.020)])
    assert falling is not None
    assert steep is not None
    assert falling.each == 0
    assert steep.fixed == 0
    assert fit_curve([]) is None
    alone = fit_curve([(4, 0.1)])
    assert alone is not None
    assert (alone.fixed, alone.each) == pytest.approx((0.1, 0.0))


def test_erlang_c() -> None:
    """One server: the probability to wait is the load; several: less; beyond: certain."""
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(3, 3.5) == 1.0


def test_waiting_in_m_m_1() -> None:
    """P(W > t) = rho exp(-(mu - lambda) t)."""
    assert waiting_p99(1, 8.0, 0.1, 1.0) == pytest.approx(math.log(0.8 / 0.01) / (10 - 8))
    assert waiting_p99(1, 0.01, 0.1, 1.0) == 0
    assert waiting_p99(1, 11.0, 0.1, 1.0) == math.inf


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("max_batch", [1, 4, 16])
@pytest.mark.parametrize("delay_us", [0, 2000])
def test_capacity_is_near_the_simulated_one(instances: int, max_batch: int, delay_us: int) -> None:
    """Within 20 %, where instances do not fight for cores: enough to rank settings."""
    machine = Machine()
    settings = {"instances": instances, "max_batch": max_batch, "delay_us": delay_us}
    curve = ServiceCurve(machine.fixed, machine.each)
    server = BatchServer(curve, instances, max_batch, delay_us / 1e6, cores=machine.cores)
    real = true_capacity(machine, settings, count=4000)
    assert capacity(server, machine.limit) == pytest.approx(real, rel=0.2)


def test_more_instances_than_cores_do_not_help() -> None:
    """They share what there is."""
    curve = ServiceCurve(0.008, 0.001)
    enough, many = (BatchServer(curve, count, 8, cores=2) for count in (2, 8))
    assert capacity(many, 0.05) < capacity(enough, 0.05) * 1.05


def test_response_grows_without_end_beyond_saturation() -> None:
    """No finite P99 is promised there."""
    server = BatchServer(ServiceCurve(0.01, 0.0), 1, 1)
    assert response_p99(server, 101.0) == math.inf


def test_a_decoder_is_bound_by_its_places_or_its_pace() -> None:
    """Places bind where a step is fast, the gap between tokens where it is slow."""
    step = ServiceCurve(0.004, 0.001)
    few, many = (
        decoder_capacity(Decoder(step, 1, places, 50.0, ttft=0.5, itl=0.1)) for places in (4, 32)
    )
    assert few < many
    slow = ServiceCurve(0.05, 0.01)
    loose, tight = (
        decoder_capacity(Decoder(slow, 1, 32, 50.0, ttft=0.5, itl=itl)) for itl in (0.5, 0.1)
    )
    assert tight < loose
