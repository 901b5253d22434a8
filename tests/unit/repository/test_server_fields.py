# SPDX-License-Identifier: Apache-2.0
"""Rendering knows which server will read: newer fields are refused, not found out at load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError
from tritonctl.host.progress import Silent
from tritonctl.repository.plan import plan_repository

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

INFLIGHT = {"ensemble": {"ensemble_scheduling": {"max_inflight_requests": 8}}}
FAMILY = {"family": "nv_inference_first_response_histogram_ms"}
METRICS = {"engine": {"model_metrics": {"metric_control": [{"metric_identifier": FAMILY}]}}}


@pytest.mark.parametrize(
    ("config", "field", "first"),
    [
        (INFLIGHT, "speller has `ensemble_scheduling.max_inflight_requests`", "2.63.0 (25.11)"),
        (METRICS, "speller_engine has `model_metrics`", "2.52.0 (24.11)"),
    ],
)
def test_a_field_newer_than_the_embedded_server(
    sandbox: Sandbox, config: dict[str, Any], field: str, first: str
) -> None:
    """The model, the field, the first version that knows it and its release are named."""
    sandbox.serving["config"] = config
    build_engine(sandbox.load(), "speller", Silent())
    with pytest.raises(ConfigurationError) as caught:
        plan_repository(sandbox.load())
    assert field in caught.value.problem
    assert caught.value.problem.endswith("the embedded server is 2.51.0")
    assert f"serve with Triton {first} or later" in caught.value.remedy


def test_a_server_in_a_container_may_know_it(sandbox: Sandbox) -> None:
    """Its version is the image's to decide."""
    sandbox.data["server"] = {"mode": "docker"}
    sandbox.serving["config"] = INFLIGHT
    build_engine(sandbox.load(), "speller", Silent())
    ensemble = plan_repository(sandbox.load()).models[-1]
    assert "max_inflight_requests: 8" in ensemble.config
