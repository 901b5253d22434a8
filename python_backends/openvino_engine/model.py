# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: OpenVINO GenAI in a separate process, behind the decoder loop."""

from collections.abc import Mapping

from textlib.engine.process import EngineProcess
from textlib.engine.service import EngineModel, EngineService
from textlib.scheduling.admission import TRITON_DECIDES
from textlib.triton.edge import reporting_load_errors, require_path, version_folder
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import SequenceLimits

# The pipeline queues sequences beyond its places, so that it replaces a finished one in the same
# step. Once fewer than a quarter of its places wait there, Triton passes a new batch.
_WAITING_SHARE = 4


def sequence_limits(parameters: ModelParameters) -> SequenceLimits:
    """Return the limits for requests; the pipeline itself does not check them."""
    return SequenceLimits(
        max_input_len=parameters.integer("max_input_len"),
        max_seq_len=parameters.integer("max_seq_len"),
        kv_tokens=parameters.integer("num_kv_blocks") * parameters.integer("block_size"),
        vocab_size=parameters.integer("vocab_size"),
        eos_token_ids=parameters.integers("eos_token_ids"),
    )


class TritonPythonModel(EngineModel):
    """See backend.toml for the tensors."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the engine on 1/engine, and the decoder loop."""
        with reporting_load_errors(args) as parameters:
            folder = require_path(version_folder(args) / "engine")
            places = parameters.integer("max_num_seqs")
            limits = sequence_limits(parameters)
            waiting = parameters.integer("max_queue_size", minimum=TRITON_DECIDES)
            self._engine = EngineProcess(("-m", "openvinolib"), folder, parameters)
            service = EngineService(
                self._engine,
                limits,
                capacity=places + -(-places // _WAITING_SHARE),
                max_queue_size=waiting,
                kv_cache=self._engine.kv_cache,
                wake=self._engine.wake,
            )
            self.serve(args, parameters, service)

    def finalize(self) -> None:
        """Stop the loop, then the engine."""
        super().finalize()
        self._engine.close()
