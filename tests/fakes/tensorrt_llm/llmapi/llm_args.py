# SPDX-License-Identifier: Apache-2.0
"""The configuration classes, where the real package has them."""

from ..llm_args import DecodingBaseConfig, KvCacheConfig

__all__ = ["DecodingBaseConfig", "KvCacheConfig"]
