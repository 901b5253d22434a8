# SPDX-License-Identifier: Apache-2.0
"""A project's Triton in containers: images, Docker Compose, sizes, addresses."""
