# SPDX-License-Identifier: Apache-2.0
"""Where a stage runs: in this interpreter, in a cached environment of its own, in a container."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tritonctl import containers
from tritonctl.engines.catalog import Builder, BuilderEnvironment, Stage
from tritonctl.engines.stages import StageBuild
from tritonctl.environments import Recipe, ensure, environment_python
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host import explained, write_atomically
from tritonctl.progress import Progress

# A builder never sees the hub.
_SETTINGS = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Workplace:
    """A place where programs run: what comes before them on the command line, their environment."""

    prefix: tuple[str, ...]
    environment: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)  # of the place itself: an image's id
    leave: Callable[[], None] = lambda: None  # removes what a killed program would leave behind

    def command(self, build: StageBuild, request: Path, result: Path) -> list[str]:
        """The command line of a stage."""
        script = build.builder.folder / build.stage.script
        return [*self.prefix, str(script), "--request", str(request), "--result", str(result)]


Runner = Callable[[StageBuild, Path, Progress], Workplace]


def _current(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """This interpreter: for places that have what the stage needs, such as an NGC image."""
    return _local(Path(sys.executable))


def _venv(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """The stage's own environment, made on first use."""
    return _local(venv_python(build.builder, progress, build.stage))


def _container(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """A container of the target's image that sees the build's folders, and no network."""
    image = container_image(build)
    engine = containers.engine()
    digest = containers.local_image(engine, image)
    for folder in _kept_folders(build):
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)  # else Docker would refuse to mount it
    name = f"tritonctl-build-{build.fingerprint.digest[:16]}-{os.getpid()}"
    prefix = [*container_command(engine.program, build, staging, name), image, "python3"]
    return Workplace(
        prefix=tuple(prefix),
        environment=os.environ,
        versions={"image": image, "image_id": digest, engine.name: engine.version},
        leave=lambda: containers.remove(engine, name),
    )


def container_image(build: StageBuild) -> str:
    """The image that a stage runs in. Raises ConfigurationError when nothing names one."""
    target = build.request.target
    image = target.image if target else build.model.engine.target.image
    if image is None:
        raise ConfigurationError(
            f"models.{build.name}: the runner `container` needs an image",
            remedy="set `engine.target.image`, or an `engine.target.release` that has one",
        )
    return image


def container_command(program: str, build: StageBuild, staging: Path, name: str) -> list[str]:
    """`docker run` for a stage; every path is the same inside as outside."""
    folders = [*build.builder.folders, Path(build.request.checkpoint)]
    folders += [build.source] if build.source else []
    if build.request.evaluation:
        folders.append(Path(build.request.evaluation.prompts))
    if build.request.calibration:
        folders.append(Path(build.request.calibration.data))
    return containers.run_command(
        program,
        name=name,
        read_only=folders,
        writable=[staging, *_kept_folders(build)],
        workdir=staging,
        environment={**_SETTINGS, "HOME": str(staging)},
        gpus=build.stage.needs_gpu
        or (build.request.target is not None and build.request.target.gpu is not None),
    )


def _kept_folders(build: StageBuild) -> list[Path]:
    named = (build.request.options.get(option) for option in build.stage.writes)
    return [Path(folder) for folder in named if isinstance(folder, str)]


def _local(python: Path) -> Workplace:
    # A builder sees its own environment's packages only.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return Workplace((str(python),), kept | {"PATH": path} | _SETTINGS)


def venv_python(builder: Builder, progress: Progress, stage: Stage | None = None) -> Path:
    """The interpreter of a builder's (or of its stage's) own environment, made on first use."""
    environment = _environment(builder, stage)
    wanted, version = environment.requires_python, platform.python_version()
    if not SpecifierSet(wanted).contains(version):
        raise HostError(
            f"builder {builder.name} needs Python {wanted}, this is {version}",
            remedy=f"install tritonctl under a Python {wanted}",
        )
    return environment_python(ensure(builder_recipe(builder, stage), progress))


def builder_recipe(builder: Builder, stage: Stage | None = None) -> Recipe:
    """The environment that `builder.toml` asks for."""
    environment = _environment(builder, stage)
    own = stage is not None and stage.environment is not None and builder.staged
    return Recipe(
        name=f"builder-{builder.name}-{stage.name}" if own and stage else f"builder-{builder.name}",
        installs=tuple(tuple(arguments) for arguments in environment.install),
        folder=builder.folder,
        probe="\n".join(environment.probe) or "pass",
    )


def _environment(builder: Builder, stage: Stage | None) -> BuilderEnvironment:
    environment = (stage.environment if stage else None) or builder.environment
    if environment is None:
        raise HostError(
            f"builder {builder.name} does not say how to make an environment",
            remedy="use another runner, or add [environment] to its builder.toml",
        )
    return environment


RUNNERS: dict[str, Runner] = {"current": _current, "venv": _venv, "container": _container}


def write_reproduce_script(staging: Path, workplace: Workplace, build: StageBuild) -> None:
    """Leave `reproduce.sh` beside the artefact: the same build, by hand, in an empty folder."""
    argv = [*workplace.prefix, str(build.builder.folder / build.stage.script)]
    script = " ".join(_quoted(argument, staging) for argument in argv)
    settings = " ".join(f"{key}={value}" for key, value in _SETTINGS.items())
    text = (
        "#!/bin/sh\n# The command that made this engine; run it in an empty folder.\n"
        'cp "$(cd "$(dirname "$0")" && pwd)/request.json" request.json\n'
        f"export {settings}\n"
        f'exec {script} --request "$PWD/request.json" --result "$PWD/result.json"\n'
    )
    write_atomically(staging / "reproduce.sh", text)
    (staging / "reproduce.sh").chmod(0o755)


def _quoted(argument: str, staging: Path) -> str:
    """The argument for a shell, with the folder that it runs in instead of the staging folder."""
    before, *others = argument.split(str(staging))
    return (
        shlex.quote(before) * bool(before)
        + "".join(f'"$PWD"{shlex.quote(other) if other else ""}' for other in others)
        or "''"
    )
