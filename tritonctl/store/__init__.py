# SPDX-License-Identifier: Apache-2.0
"""The content store: immutable folders, each with a manifest of its files.

An entry is staged in a hidden folder, verified, and renamed to its final name. Artefacts
(`engines/artefacts/`) and releases (`releases/`) are its two kinds of entries.
"""
