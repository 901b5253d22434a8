# SPDX-License-Identifier: Apache-2.0
# Triton for NVIDIA GPUs: NVIDIA's image, and the Python backends' packages in an environment that also
# sees the image's packages (tensorrt_llm). No weights: the model repository is mounted.
# Context: the folder triton/ that `tritonctl deploy compose` writes.
# BASE_IMAGE: an image of builders/compatibility.toml, preferably by digest: NAME@sha256:...
ARG BASE_IMAGE

FROM ${BASE_IMAGE}
USER 0
# hadolint ignore=DL3008
RUN if ! python3 -c 'import venv, ensurepip'; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3-venv \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# Packages of the lock are verified. requirements.txt adds those of your own models and steps, and
# what the image itself lacks of their dependencies.
COPY gpu_requirements.lock requirements.txt /opt/tritonctl/
# The secret `ca`: certificates that pip trusts instead of its own, behind a TLS proxy. May be empty.
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv --system-site-packages /opt/tritonctl/environment \
    && /opt/tritonctl/environment/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes --requirement /opt/tritonctl/gpu_requirements.lock \
    && /opt/tritonctl/environment/bin/python -m pip install --no-cache-dir --disable-pip-version-check --requirement /opt/tritonctl/requirements.txt \
    && { getent passwd 1000 >/dev/null \
        || useradd --uid 1000 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin triton-server; }
COPY tritonctl /opt/tritonctl/lib/tritonctl
ENV PATH=/opt/tritonctl/environment/bin:/opt/tritonserver/bin:$PATH \
    HF_HUB_OFFLINE=1 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    HOME=/tmp
USER 1000:1000
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=3s --timeout=5s --start-period=1800s --retries=5 \
    CMD ["python3", "/opt/tritonctl/lib/tritonctl/runtimes/docker/entrypoint.py", "--healthy"]
# NVIDIA's entry point selects the CUDA libraries for the host's driver.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "python3", "/opt/tritonctl/lib/tritonctl/runtimes/docker/entrypoint.py"]
CMD ["tritonserver", "--model-repository=/models"]
