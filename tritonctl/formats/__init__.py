# SPDX-License-Identifier: Apache-2.0
"""Reads model files without their libraries: ONNX, OpenVINO IR, TensorRT-LLM engine folders."""
