# SPDX-License-Identifier: Apache-2.0
"""Where a stage runs: in this interpreter, in its own cached environment, or in a container."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tritonctl.engines.build.catalog import Builder, BuilderEnvironment, Stage
from tritonctl.engines.build.fingerprint import named_in
from tritonctl.engines.build.given_files import given_files
from tritonctl.engines.build.image_probe import ImageFacts, check_image
from tritonctl.engines.build.stages import StageBuild
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host import containers
from tritonctl.host.containers import ContainerEngine
from tritonctl.host.environments import (
    Recipe,
    ensure,
    environment_python,
    is_made,
    packages_of,
)
from tritonctl.host.files import explained, write_atomically
from tritonctl.host.installer import asks_no_index
from tritonctl.host.interpreters import need
from tritonctl.host.process import without_python_variables
from tritonctl.host.progress import Progress
from tritonctl.project.compatibility.table import Target

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
        script = build.builder.program(build.stage)
        return [*self.prefix, str(script), "--request", str(request), "--result", str(result)]


Runner = Callable[[StageBuild, Path, Progress], Workplace]


def _current(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """This interpreter: for places that have what the stage needs, such as an NGC image."""
    return _local(Path(sys.executable))


def _venv(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """The stage's own environment, made on first use."""
    return _local(venv_python(build.builder, progress, build.stage, build.request.target))


def _container(build: StageBuild, staging: Path, progress: Progress) -> Workplace:
    """A container of the target's image that sees the build's folders, and no network.

    Raises HostError when this machine lacks the image, or the image what the stage imports.
    """
    image = container_image(build)
    engine = containers.engine()
    digest = containers.local_image(engine, image)
    for folder in _kept_folders(build):
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)  # else Docker would refuse to mount it
    name = f"tritonctl-build-{build.fingerprint.digest[:16]}-{os.getpid()}"
    with progress.step(f"Looking into the image {image}"):
        facts = _check_image(build, staging, engine, image)
    packages = _task_packages(build, facts, progress) if facts else None
    command = container_command(engine.program, build, staging, name, packages)
    prefix = [*command, image, "python3"]
    return Workplace(
        prefix=tuple(prefix),
        environment=os.environ,
        versions={"image": image, "image_id": digest, engine.name: engine.version},
        leave=lambda: containers.remove(engine, name),
    )


def _check_image(
    build: StageBuild, staging: Path, engine: ContainerEngine, image: str
) -> ImageFacts | None:
    environment = _environment_of(build)
    if environment is None or not environment.probe:
        return None
    others = [name for name in build.stage.runners if name != "container"]
    name = f"tritonctl-probe-{build.fingerprint.digest[:16]}-{os.getpid()}"
    probe = []
    for statement in environment.probe:
        with suppress(ConfigurationError):  # of an unknown version
            probe.append(_filled(build.builder.name, build.request.target, statement))
    try:
        return check_image(
            image,
            [*container_command(engine.program, build, staging, name), image, "python3"],
            probe,
            requires_python=environment.requires_python,
            log=staging / "build.log",
            remedy="name an image that has it in `engine.target.image`"
            + (f", or build with `--runner {others[0]}`" if others else ""),
            extras=environment.task_probe if build.request.task else (),
        )
    except BaseException:
        containers.remove(engine, name)
        raise


def _environment_of(build: StageBuild) -> BuilderEnvironment | None:
    return build.stage.environment or build.builder.owner(build.stage).environment


def _task_packages(build: StageBuild, facts: ImageFacts, progress: Progress) -> Path | None:
    """The folder of what the image lacks for a task, installed here for its Python."""
    environment = _environment_of(build)
    if environment is None or not facts.absent:
        return None
    owner = build.builder.owner(build.stage)
    recipe = Recipe(
        name=f"task-{owner.name}",
        installs=(tuple(environment.task_install),),
        folder=owner.folder,
        reader=f"{facts.python.major}.{facts.python.minor}",
    )
    return packages_of(ensure(recipe, progress))


def refuse_to_install(builds: Iterable[StageBuild]) -> None:
    """For a build without a network: the environments of these stages must be here.

    One that pip makes of local wheels alone (`no-index`) needs no network. Raises HostError.
    """
    for build in builds:
        if build.runner != "venv":
            continue
        recipe = builder_recipe(build.builder, build.stage, build.request.target)
        if not is_made(recipe) and not asks_no_index(recipe.python.path):
            raise HostError(
                f"--offline, but the environment {recipe.name} is not installed on this machine",
                remedy=f"run `tritonctl build {build.name}` once where there is a network, or "
                "bring the wheels in a bundle: `tritonctl bundle FOLDER --builders` there",
            )


def refuse_what_is_missing(builds: Iterable[StageBuild]) -> None:
    """Ask before the first stage for the containers of all: quantising takes hours.

    Raises ConfigurationError when nothing names an image, HostError without a container engine
    or when the image has to be pulled.
    """
    for build in builds:
        if build.runner != "container":
            continue
        image = container_image(build)
        try:
            containers.local_image(containers.engine(), image)
        except HostError as error:
            raise HostError(
                f"{build.place}: {error.problem}", remedy=error.remedy, details=error.details
            ) from error


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


def container_command(
    program: str, build: StageBuild, staging: Path, name: str, packages: Path | None = None
) -> list[str]:
    """`docker run` for a stage; every path is the same inside as outside.

    packages: a folder whose packages its Python finds first.
    """
    checkpoint = Path(build.request.checkpoint)
    folders = [*build.builder.owner(build.stage).folders, *build.builder.tables, checkpoint]
    folders += named_in(checkpoint) if checkpoint.is_file() else []
    if checkpoint.parent.name == "snapshots":  # in a hub's cache, whose files are links
        folders.append(checkpoint.parents[1])
    folders += [build.source] if build.source else []
    if build.request.evaluation:
        folders.append(Path(build.request.evaluation.prompts))
    if build.request.calibration:
        folders.append(Path(build.request.calibration.data))
    folders += given_files(build.stage, build.request.options).values()
    folders += [packages] if packages else []
    found = {"PYTHONPATH": str(packages)} if packages else {}
    return containers.run_command(
        program,
        name=name,
        read_only=folders,
        writable=[staging, *_kept_folders(build)],
        workdir=staging,
        environment={**_SETTINGS, "HOME": str(staging), **found},
        gpus=build.stage.needs_gpu or _can_use_gpus(build),
    )


def _can_use_gpus(build: StageBuild) -> bool:
    """For a stage that needs no GPU: Docker refuses `--gpus` on a machine without one."""
    target = build.request.target
    return target is not None and target.gpu is not None and bool(shutil.which("nvidia-smi"))


def _kept_folders(build: StageBuild) -> list[Path]:
    named = (build.request.options.get(option) for option in build.stage.writes)
    return [Path(folder) for folder in named if isinstance(folder, str)]


def _local(python: Path) -> Workplace:
    # A builder sees its own environment's packages only.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return Workplace((str(python),), without_python_variables() | {"PATH": path} | _SETTINGS)


def venv_python(
    builder: Builder,
    progress: Progress,
    stage: Stage | None = None,
    target: Target | None = None,
) -> Path:
    """The interpreter of a builder's (or of its stage's) own environment, made on first use."""
    return environment_python(ensure(builder_recipe(builder, stage, target), progress))


def builder_recipe(
    builder: Builder, stage: Stage | None = None, target: Target | None = None
) -> Recipe:
    """The environment that `builder.toml` asks for, with the target's versions in its place.

    Raises ConfigurationError for a version that the target lacks, HostError without a Python that
    the builder runs in.
    """
    if stage is not None and stage.of:
        return builder_recipe(builder.owner(stage))
    environment = _environment(builder, stage)
    filled = partial(_filled, builder.name, target)
    own = stage is not None and stage.environment is not None and stage in builder.stages
    return Recipe(
        name=f"builder-{builder.name}-{stage.name}" if own and stage else f"builder-{builder.name}",
        installs=tuple(tuple(map(filled, arguments)) for arguments in environment.install),
        folder=builder.folder,
        probe="\n".join(map(filled, environment.probe)) or "pass",
        gpu=_uses_gpus(builder, stage),
        python=need(environment.requires_python, f"builder {builder.name}"),
    )


def _uses_gpus(builder: Builder, stage: Stage | None) -> bool:
    """Whether PyTorch is to be built for CUDA: needed, or made for GPUs where there is one."""
    needed = stage.needs_gpu if stage else builder.needs_gpu
    return needed or (builder.targets is not None and bool(shutil.which("nvidia-smi")))


def _filled(builder: str, target: Target | None, text: str) -> str:
    """Text of builder.toml, versions of the target put in."""
    versions = {
        "{tensorrt}": target.tensorrt if target else None,
        "{cuda_major}": target.cuda.split(".")[0] if target and target.cuda else None,
    }
    for name, version in versions.items():
        if name in text and version is None:
            raise ConfigurationError(
                f"the environment of builder {builder} depends on the server's {name}, which is "
                "unknown",
                remedy="set engine.target.release and engine.target.tensorrt, or use another "
                "runner",
            )
        text = text.replace(name, version or "")
    return text


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
    argv = [*workplace.prefix, str(build.builder.program(build.stage))]
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
