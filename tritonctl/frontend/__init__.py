# SPDX-License-Identifier: Apache-2.0
"""The OpenAI API over the public models: one stateless process, gRPC to Triton."""
