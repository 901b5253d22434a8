# SPDX-License-Identifier: Apache-2.0
"""The version of tritonctl: written once, read by the package, the build and the images."""

__version__ = "0.1.0"
