# SPDX-License-Identifier: Apache-2.0
"""The process of an OpenVINO engine: `python -m openvinolib`, started by its stub."""

from openvinolib.pipeline import OpenvinoEngine
from textlib.engine_worker import main

main(OpenvinoEngine)
