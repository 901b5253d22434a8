# SPDX-License-Identifier: Apache-2.0
"""The section of the project file for the OpenAI API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tritonctl.project.base import AboveZero, Positive, Strict
from tritonctl.project.server import Port, Tracing

# Names like OpenAI's or those of a hub; a colon separates an adapter.
Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$", max_length=200)]


# As browsers send it: scheme, host, and the port unless it is the scheme's.
Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s?#@*A-Z]+)$")]


class Ledger(Strict):
    """A shared ledger of tenants' budgets for several frontends: Redis 6.2 or later, or Valkey."""

    redis: str = Field(
        description="e.g. redis://10.0.0.5:6379/0, rediss:// with TLS; never with a password",
        pattern=r"^rediss?://[^\s]+$",
    )
    password_file: Path | None = Field(
        None, description="file with Redis' password on one line", strict=False
    )
    ca: Path | None = Field(
        None, description="certificate authority of Redis' certificate", strict=False
    )
    when_unreachable: Literal["refuse", "allow"] = Field(
        "refuse",
        description="refuse: tenants with limits get 503 until Redis answers again; allow: each "
        "frontend counts separately meanwhile",
    )

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        if urlsplit(self.redis).password is not None:
            raise ValueError("redis contains a password: write it to a file, `password_file`")
        return self


class Upstream(Strict):
    """A server that the frontend sends requests to."""

    host: str = Field(description="name or address; each address of a name counts as a server")
    grpc_port: Port = Field(8001, description="port of inference over gRPC")
    metrics_port: Port | None = Field(
        8002, description="port of the metrics that show the server's load; null: do not read them"
    )

    @property
    def url(self) -> str:
        """The gRPC address `host:port`."""
        return f"{self.host}:{self.grpc_port}"


class Pool(Strict):
    """Replicas for requests up to a length; a request goes to the tightest pool that fits."""

    upstreams: list[str] = Field(
        description="entries of `frontend.upstreams`, as host:grpc_port", min_length=1
    )
    most_tokens: Positive | None = Field(
        None,
        description="maximum tokens of a request's prompt and expected answer; unlimited when "
        "absent",
    )


# The tool-call markup of a family of checkpoints; `none`: tools are refused.
ToolFormat = Literal[
    "none",
    "qwen_coder",
    "glm",
    "hermes",
    "deepseek",
    "kimi",
    "mistral",
    "jamba",
    "command_r",
    "granite",
    "internlm",
    "pythonic",
    "llama3",
]


# Start of a model's reasoning: with <think> in its answer, or already in the prompt.
Reasoning = Literal["tags", "opened"]

# System messages of a model whose chat template has no such role: part of the next user message.
SystemMessages = Literal["prepend", "refuse"]


class Frontend(Strict):
    """The OpenAI API over the public models, started by `tritonctl frontend` and `up`."""

    address: str = Field("127.0.0.1", description="listening address; loopback by default")
    port: Port = Field(9000, description="port of the HTTP API; 0: the system chooses a free one")
    aliases: dict[Alias, str] = Field(
        {},
        description="additional model names, e.g. `gpt-4o-mini: speller`; "
        "`MODEL:ADAPTER` for a model with a LoRA adapter",
    )
    upstreams: list[Upstream] = Field(
        [], description="the servers; the project's server or its compose replicas when absent"
    )
    prefix_affinity: bool = Field(
        False,
        description="send prompts with equal beginnings to the same server, which may have them "
        "cached, unless it is busier than the others",
    )
    tool_formats: dict[str, ToolFormat] = Field(
        {},
        description="tool-call format by model; detected in its chat template when absent",
    )
    reasoning: dict[str, Reasoning] = Field(
        {},
        description="models whose reasoning is returned as `reasoning_content`: `tags`, answers "
        "start with <think>; `opened`, the chat template opens it; content when absent",
    )
    system_messages: dict[str, SystemMessages] = Field(
        {},
        description="of models whose chat template has no system role: `prepend`, system messages "
        "begin the next user message, also when absent; `refuse`: 400",
    )
    matryoshka: dict[str, bool] = Field(
        {},
        description="whether an embedding model was trained for shorter vectors: `dimensions` of a "
        "request; read from its config.json and model card when absent",
    )
    max_body_bytes: Positive = Field(
        10_000_000,
        description="maximum request body, and maximum input of the tokenizer; beyond: 413",
    )
    body_timeout_seconds: AboveZero = Field(
        30.0, description="timeout of a request's head, and again of its body; beyond: 408"
    )
    max_requests: Positive = Field(
        1024,
        description="maximum requests in flight, each once its body has been read; beyond: 429",
    )
    silence_seconds: AboveZero | None = Field(
        60.0,
        description="timeout between tokens: the answer then continues on another server, or "
        "fails; null: unlimited",
    )
    cors_origins: list[Origin] = Field(
        [],
        description="origins of web pages whose scripts may use the API, e.g. "
        "`https://chat.example.org`; `*`: any page that a user opens; none when empty",
    )
    metrics_key_file: Path | None = Field(
        None,
        description="file with the key of /metrics on one line, for Prometheus' `authorization`; "
        "open to everyone who reaches the port when absent",
        strict=False,
    )
    access_log: bool = Field(
        True, description="log a line of JSON per request, without prompt and answer"
    )
    log_prompts: bool = Field(
        False, description="log prompts and answers too: for debugging, not for production"
    )
    tracing: Tracing | None = Field(
        None, description="export of traces by OpenTelemetry's GenAI conventions; off when absent"
    )
    ledger: Ledger | None = Field(
        None, description="shared ledger of tenants' budgets; in process memory when absent"
    )

    @property
    def secret_files(self) -> dict[str, Path]:
        """Files with keys and passwords, by field."""
        files = {
            "metrics_key_file": self.metrics_key_file,
            "ledger.password_file": self.ledger.password_file if self.ledger else None,
        }
        return {field: file for field, file in files.items() if file is not None}

    @model_validator(mode="after")
    def _upstreams_once(self) -> Self:
        urls = [each.url for each in self.upstreams]
        if twice := next((url for url in urls if urls.count(url) > 1), None):
            raise ValueError(f"upstreams has {twice} twice")
        return self

    def refuse_unknown_upstreams(self, model: str, pools: Mapping[str, Pool]) -> None:
        """Raise ValueError for pools with unknown upstreams, or without one for long requests."""
        upstream_urls = [each.url for each in self.upstreams]
        for name, pool in pools.items():
            for url in pool.upstreams:
                if url not in upstream_urls:
                    expected = f"has {', '.join(upstream_urls)}" if upstream_urls else "is empty"
                    raise ValueError(
                        f"models.{model}.serving.pools.{name} names `{url}`; frontend.upstreams "
                        f"{expected}"
                    )
        if pools and all(pool.most_tokens is not None for pool in pools.values()):
            raise ValueError(
                f"models.{model}.serving.pools: no pool accepts the longest requests; omit "
                "`most_tokens` in one"
            )

    def refuse_unknown_models(self, public: Collection[str]) -> None:
        """Raise ValueError for a field with an unknown model, or an alias named like a model."""
        for field in ("tool_formats", "reasoning", "system_messages", "matryoshka"):
            for model in getattr(self, field):
                if model not in public:
                    model_names = ", ".join(sorted(public))
                    raise ValueError(f"{field} has `{model}`, expected one of {model_names}")
        for alias, target in self.aliases.items():
            if alias in public:
                raise ValueError(f"the alias `{alias}` is the name of a model")
            if target.partition(":")[0] not in public:
                model_names = ", ".join(sorted(public))
                raise ValueError(
                    f"alias `{alias}`: unknown `{target}`, expected one of {model_names}"
                )
