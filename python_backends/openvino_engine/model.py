# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: OpenVINO GenAI, in a process of its own, behind the decoder loop."""

from collections.abc import Mapping

from textlib.admission import TRITON_DECIDES
from textlib.engine_process import EngineProcess
from textlib.engine_service import EngineModel, Service
from textlib.parameters import ModelParameters
from textlib.request_tensors import SequenceLimits
from textlib.triton_edge import existing, loading, version_folder

# The pipeline lines up what it cannot run yet, so that a finished sequence is replaced within the
# same step. Once less than a quarter of its places waits there, Triton's queue gives a new batch.
_WAITING_SHARE = 4


def sequence_limits(parameters: ModelParameters) -> SequenceLimits:
    """What a request is checked against before the pipeline, which does not check, sees it."""
    return SequenceLimits(
        max_input_len=parameters.integer("max_input_len"),
        max_seq_len=parameters.integer("max_seq_len"),
        kv_tokens=parameters.integer("num_kv_blocks") * parameters.integer("block_size"),
        vocab_size=parameters.integer("vocab_size"),
        eos_token_ids=parameters.integers("eos_token_ids"),
    )


class TritonPythonModel(EngineModel):
    """The tensors are described in backend.toml."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the engine on 1/engine, and the decoder loop."""
        with loading(args) as parameters:
            folder = existing(version_folder(args) / "engine")
            places = parameters.integer("max_num_seqs")
            limits = sequence_limits(parameters)
            waiting = parameters.integer("max_queue_size", minimum=TRITON_DECIDES)
            self._engine = EngineProcess(("-m", "openvinolib"), folder, parameters)
            service = Service(
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
