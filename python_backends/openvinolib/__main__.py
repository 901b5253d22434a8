# SPDX-License-Identifier: Apache-2.0
"""The process of an OpenVINO engine: `python -m openvinolib`, started by the engine's stub."""

from openvinolib.pipeline import OpenvinoEngine
from textlib.engine.worker import main

main(OpenvinoEngine)
