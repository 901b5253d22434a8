# SPDX-License-Identifier: Apache-2.0
"""TC91x: secrets in a repository, and releases with known vulnerabilities.

Findings never show a secret: they point at it with its text masked.

Sources: NVIDIA's security bulletins, by builders/compatibility.toml;
https://docs.github.com/en/code-security/secret-scanning (the forms of tokens)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.small_files import small_files
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning
from tritonctl.checks.source_span import SourceText, Span

_TOKEN_PATTERNS = {
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{50,}",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "NVIDIA API key": r"\bnvapi-[A-Za-z0-9_-]{40,}",
    "Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
}
_TOKEN_PREFIXES = (
    *("hf_", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("nvapi-", "xox", "AIza", "PRIVATE KEY-----"),
)
_SECRET = re.compile(
    "|".join(f"(?P<s{i}>{form})" for i, form in enumerate(_TOKEN_PATTERNS.values()))
)
_KINDS = dict(zip((f"s{i}" for i in range(len(_TOKEN_PATTERNS))), _TOKEN_PATTERNS, strict=True))
# A plain "token" is excluded: in machine learning it mostly means something else.
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:(?:hf|hub|auth|access|api|bearer|github|wandb)_?token|passw(?:or)?d|passphrase"
    r"|secret|secret_?key|api_?key|access_?key)",
    re.IGNORECASE,
)
_MIN_SECRET_LENGTH = 8
_MIN_DISTINCT_CHARACTERS = 6  # a text with fewer different characters is a placeholder


@warning(
    "TC910 secret-in-repository",
    summary="a token, key or password in a configuration or in code",
    reason="Repositories are copied, backed up and built into images, and a running server shows "
    "the parameters of its models to every client.",
)
def secrets(model: Model) -> Iterator[Hit]:
    texts = [model.file.source] if model.file else []
    texts += [model.code.source] if model.code else []
    for source in (*texts, *small_files(model)):
        hits = [*_find_tokens(source.text)]
        if model.file and source is model.file.source:
            hits += _secret_parameters(model)
        masked_source = _mask(source, [span for _, span in hits])
        for message, span in hits:
            yield Hit(
                message,
                "revoke and remove it; pass a new one through the server's environment",
                span,
                masked_source,
            )


def _find_tokens(text: str) -> Iterator[tuple[str, Span]]:
    if not any(start in text for start in _TOKEN_PREFIXES):
        return
    for match in _SECRET.finditer(text):
        kind = _KINDS[match.lastgroup or ""]
        if kind == "private key" or _is_real(match.group()):
            yield f"this is {'an' if kind[0] in 'AN' else 'a'} {kind}", Span(*match.span())


def _is_real(text: str) -> bool:
    return len(set(text)) >= _MIN_DISTINCT_CHARACTERS and "EXAMPLE" not in text.upper()


def _secret_parameters(model: Model) -> Iterator[tuple[str, Span]]:
    """Yield the parameters whose name indicates a secret."""
    config = model.config
    for key, value in config.message.parameters.items():
        text = value.string_value
        if not _SECRET_NAME.fullmatch(key) or len(text) < _MIN_SECRET_LENGTH or not _is_real(text):
            continue
        if "${" not in text and text[0] != "/" and not _SECRET.search(text):
            span = config.span("parameters", key, "string_value")
            yield f"the parameter {key} holds a secret", span


def _mask(source: SourceText, spans: list[Span]) -> SourceText:
    """Return the file with the spans masked; its length stays the same."""
    text = source.text
    for span in spans:
        text = text[: span.start] + "*" * (span.end - span.start) + text[span.end :]
    return SourceText(source.name, text)


@warning(
    "TC911 known-holes",
    summary="a target version with known vulnerabilities",
    reason="NVIDIA's bulletins are public; only a later release fixes the vulnerabilities.",
    shows="elsewhere",
)
def known_vulnerabilities(repository: Repository) -> Iterator[Hit]:
    target = repository.target
    if not target.version or not target.named_by_user:
        return
    # Importing it (pydantic) takes longer than checking a model.
    from tritonctl.project.compatibility.exposure import cves_of, fixed_in, known_holes

    vulnerabilities = known_holes(target.version)
    # The finding is reported at the first readable configuration.
    with_config = (model for _, model in sorted(repository.models.items()) if model.has_config)
    model = next(with_config, None) if vulnerabilities else None
    if model is None:
        return
    yield Hit(
        f"Triton {target.version} has known vulnerabilities: {cves_of(vulnerabilities)}; "
        f"the worst: {vulnerabilities[0].summary} (CVSS {vulnerabilities[0].score:g})",
        f"serve with release {fixed_in(vulnerabilities)} or later, or let only this machine reach "
        "it",
        model.config.span("name"),
        model=model,
    )


@warning(
    "TC912 shared-environment",
    summary="an EXECUTION_ENV_PATH in a world-writable folder",
    reason="The user who first puts an archive there controls the Python that runs the model, with "
    "all permissions of the server.",
    shows="elsewhere",
)
def shared_environment(config: ConfigMessage) -> Iterator[Hit]:
    key = "EXECUTION_ENV_PATH"
    if key not in config.message.parameters:
        return
    path = config.message.parameters[key].string_value
    if path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):  # noqa: S108 - looked for, not used
        yield Hit(
            f"{key} is {path}, in a folder where every user of the machine may create files",
            "keep the environment with the model: $$TRITON_MODEL_DIRECTORY/env.tar.gz",
            config.span("parameters", key, "string_value"),
        )
