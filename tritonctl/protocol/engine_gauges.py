# SPDX-License-Identifier: Apache-2.0
"""The gauges by which servers tell how busy they are: series, and the labels to match.

Those of this project's engines, of TensorRT-LLM's backend, and Triton's own queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Sources = Sequence[tuple[str, Mapping[str, str]]]

_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
ACTIVE: Sources = (("tritonctl_active_streams", {}), (_REQUESTS, {"request_type": "active"}))
# In Triton's queues and in the engines' own.
WAITING: Sources = (
    ("nv_inference_pending_request_count", {}),
    ("tritonctl_waiting_streams", {}),
    (_REQUESTS, {"request_type": "waiting"}),
)
KV_USED, KV_FREE = (
    (("tritonctl_kv_blocks", {"state": state}), (_BLOCKS, {"kv_cache_block_type": state}))
    for state in ("used", "free")
)
