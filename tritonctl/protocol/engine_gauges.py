# SPDX-License-Identifier: Apache-2.0
"""The gauges of a server's load: series, and the labels to match.

They come from this project's engines, TensorRT-LLM's backend, and Triton's queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Sources = Sequence[tuple[str, Mapping[str, str]]]

_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
ACTIVE: Sources = (("tritonctl_active_streams", {}), (_REQUESTS, {"request_type": "active"}))
# In Triton's queues and in the engines' queues.
WAITING: Sources = (
    ("nv_inference_pending_request_count", {}),
    ("tritonctl_waiting_streams", {}),
    (_REQUESTS, {"request_type": "waiting"}),
)
KV_USED, KV_FREE = (
    (("tritonctl_kv_blocks", {"state": state}), (_BLOCKS, {"kv_cache_block_type": state}))
    for state in ("used", "free")
)
