# SPDX-License-Identifier: Apache-2.0
"""The observer that a configuration asks for."""

from __future__ import annotations

import sys
from typing import TextIO

from tritonctl.frontend.access_log import AccessLog
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.metrics import Metrics
from tritonctl.frontend.observed import OPERATIONS
from tritonctl.frontend.observer import Observer

_ENDPOINTS = (*OPERATIONS, "/v1/models")


def observing(config: FrontendConfig, log: TextIO | None = None) -> Observer:
    """log: of the access log; standard output when None."""
    settings, tracer = config.settings, None
    if settings.tracing is not None:
        # OpenTelemetry's SDK costs a start 0.2 s and 15 MB: only those pay who trace.
        from tritonctl.frontend.tracing import Tracer

        tracer = Tracer(settings.tracing)
    return Observer(
        Metrics(),
        AccessLog(log or sys.stdout) if settings.access_log else None,
        tracer,
        endpoints=_ENDPOINTS,
        keeps_text=settings.log_prompts,
    )
