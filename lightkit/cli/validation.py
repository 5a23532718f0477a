"""Validate a config without torch, as far as its classes are described; the rest needs imports."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.argument_lookup import describe_imported, import_class
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import WITH_MODEL
from lightkit.cli.config_loader import LoadedConfig
from lightkit.cli.heap import freezing_imports
from lightkit.config import Origin, Problems, Resolved, dotted, error_at, near
from lightkit.config.origins import near_files, shown_path
from lightkit.config.resolved import DEFAULT_ROOT, drop_paths
from lightkit.config.schema import ClassDescription, ConfigSchema, load_schema
from lightkit.config.validation import (
    ValidationResult,
    find_refused_inputs,
    find_refused_numbers,
    find_section_class,
    is_choice,
    validate_values,
)
from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.export.options import describe_missing_hooks
from lightkit.images.table_format import explain_other_format
from lightkit.runs.resume import check_checkpoint_file, open_named_run

_MODULES_OF_BASES = ("pytorch_lightning.core.module", "torch.nn.modules.module")
"""Where the classes are defined whose `forward`, `__call__` and `predict_step` every module has."""


def validate(loaded: LoadedConfig, given: Resolved, problems: Problems) -> ValidationResult:
    """Find what is wrong with keys, values, files and folders.

    Args:
        loaded: The command line and its config, with its hardware keys resolved.
        given: The config before they were.
        problems: Takes the errors.

    Returns:
        What was found, with the places that only an import can judge.
    """
    command = loaded.invocation.command
    named = loaded.invocation.options.get("ckpt_path")
    _check_run_paths(command, loaded.resolved, named, problems)
    if command != "export":  # which records nothing
        _check_tracking(loaded.resolved, problems)
    findings = _findings(given, load_schema(), problems)
    for _, problem in findings.problems:
        problems.add(problem)
    is_missing = command in WITH_MODEL and given.value_of("model") is None
    if is_missing and not problems.is_incomplete:
        problems.add(_missing_model(loaded.invocation, given))
    return findings


def _missing_model(invocation: Invocation, resolved: Resolved) -> ConfigError:
    """Describe how to name the model; where there is a checkpoint, by the config of its run."""
    text = "model: missing"
    command = invocation.command
    files = invocation.files
    if files and not any(origin.file for origin in resolved.origins.values()):
        text += f"; {', '.join(files)} sets nothing"
    checkpoint = invocation.options.get("ckpt_path", resolved.value_of("ckpt_path"))
    by_run = "" if command == "fit" else "name a run with --run, or "
    if checkpoint is not None:
        text += f"; --ckpt_path {checkpoint} brings weights, not the config"
        run = _name_run_of(Path(str(checkpoint)))
        by_run = f"use -c {run}/config.yaml, or " if command == "fit" else f"use --run {run}, or "
    text += f"; {by_run}set it in a file given with -c, or with --model=VALUE"
    if command == "fit" and checkpoint is None and not files:
        text += "; `lightkit init` writes a config, and `-c lightkit:flowers` is an example"
    return ConfigError(text)


def _name_run_of(checkpoint: Path) -> str:
    """Return the folder of the run that has written a checkpoint, or a word for it."""
    folder = checkpoint.resolve().parent.parent
    return shown_path(folder) if (folder / "manifest.json").is_file() else "RUN"


def validate_signatures(resolved: Resolved, problems: Problems) -> Resolved:
    """Validate by the signatures of the config's own classes, too.

    Return the config without its errors.

    jsonargparse finds the same errors, but stops at the first of a class.

    Args:
        resolved: The config.
        problems: Takes the errors.
    """
    schema = load_schema()
    tried = set[str]()
    while True:
        findings = _findings(resolved, schema, problems)
        names = {name for name in findings.undescribed if "." in name} - tried
        if not names:
            break
        tried |= names
        schema = schema.with_imported(_describe_imported(names))
    for _, problem in findings.problems:
        problems.add(problem)
    return drop_paths(resolved, {path for path, _ in findings.problems})


def _describe_imported(names: Iterable[str]) -> dict[str, ClassDescription]:
    """Import classes and describe them, with the error of an import.

    Those that only jsonargparse may judge are left out.
    """
    found: dict[str, ClassDescription] = {}
    for name in names:
        try:
            with freezing_imports():
                described = describe_imported(name)
        except ConfigError as error:
            described = ClassDescription(path=name, error=str(error))
        if described is not None:
            found[name] = described
    return found


def _findings(resolved: Resolved, schema: ConfigSchema, problems: Problems) -> ValidationResult:
    found = validate_values(resolved, schema)
    for name, origin in found.outdated.items():
        text = f"{name}: written for Lightning 1.x; `lightkit upgrade {name}` lists today's words"
        problems.add(ConfigError(text, places=[origin]))
    return found


def check_inputs(resolved: Resolved, *, starts_training: bool, parsed: Any = None) -> None:
    """Check the choices and paths that the classes of model and data name.

    Call ``check_installed`` of the data's.

    Args:
        resolved: The config.
        starts_training: Whether training starts without a checkpoint, so that the model's files are
            needed.
        parsed: The config as jsonargparse parsed it, whose classes are imported; None to check the
            classes that the schema describes, without importing them.

    Raises:
        ConfigError: If a value is none of the choices, or as ``check_installed`` does, with the
            place of the class.
        DataError: If a path does not exist, or is a file in place of a folder.
    """
    problems = Problems()
    for section, has_paths in (("model", starts_training), ("data", True)):
        if parsed is None:
            described = find_section_class(section, resolved, load_schema())
            given = resolved.section(section).get("init_args") or {}
            given = given if described is None else {**described.defaults, **given}
            is_buildable = True
        else:
            value = parsed.get(section) or {}
            described = _find_parsed_class(value.get("class_path"))
            given = value.get("init_args") or {}
            is_buildable = _check_imported(section, described, given, resolved, problems)
        if described is not None and is_buildable and has_paths:
            _check_paths(section, described, given, resolved, problems)
    problems.raise_any()


def _find_parsed_class(path: str | None) -> ClassDescription | None:
    """Find the description of a class that jsonargparse has imported; None for a function."""
    schema = load_schema()
    found = schema.find_valid(path) if schema.is_current else None
    return describe_imported(path) if found is None and path is not None else found


def _check_imported(
    section: str,
    described: ClassDescription | None,
    given: Mapping[str, Any],
    resolved: Resolved,
    problems: Problems,
) -> bool:
    """Check choices and numbers of a section's class; return whether what it needs is installed."""
    if described is None:
        return True
    if section == "data" and described.check_installed:
        try:
            import_class(described.path).check_installed()
        except ConfigError as error:
            origin = resolved.origin_of((section, "class_path"))
            problems.add(_error_at(origin, ConfigError, str(error)))
            return False
    for find_refused in (find_refused_inputs, find_refused_numbers):
        for _, problem in find_refused(described, given, (section, "init_args"), resolved):
            problems.add(problem)
    return True


def _check_paths(
    section: str,
    described: ClassDescription,
    given: Mapping[str, Any],
    resolved: Resolved,
    problems: Problems,
) -> None:
    """Check the arguments that name files.

    An address, such as ``s3://bucket/table``, is not asked for.
    """
    for name, kind in described.paths.items():
        value = given.get(name)
        if not value:
            continue
        choices = described.choices.get(name, ())
        fault = None if is_choice(str(value), choices) else _describe_missing(str(value), kind)
        if fault:
            can_fetch = described.fetch and not fault.startswith("expected")
            fault += near(str(value), choices)
            fault += (
                "; `lightkit fetch` with the same -c FILE puts the data there" if can_fetch else ""
            )
        elif kind == "class_folders":
            fault = _describe_wrong_folders(Path(value).expanduser())
        if fault:
            origin = resolved.origin_of((section, "init_args", name))
            problems.add(_error_at(origin, DataError, f"{section}.init_args.{name}: {fault}"))


def _describe_wrong_folders(folder: Path) -> str | None:
    """Describe why a folder's folders are not those of splits and classes with images.

    None where they are.
    """
    if not folder.is_dir():
        return None
    # here: it loads Pillow, for few configs
    from lightkit.images.image_index import check_class_folders

    try:
        check_class_folders(folder)
    except DataError as error:
        return str(error)
    return None


def _error_at(origin: Origin | None, kind: type[LightkitError], text: str) -> LightkitError:
    places = [] if origin is None or origin.kind == "default" else [origin]
    return kind("\n".join([text, *(place.render() for place in places)]), places=places)


def _describe_missing(value: str, kind: str) -> str | None:
    """Describe what is missing of a ``folder``, a ``file`` or ``any`` of both.

    None where nothing is.

    ``class_folders`` is a folder whose content is checked too, by `check_class_folders`, and
    ``table`` a file or folder that may be a table.
    """
    is_table = kind == "table"
    kind = {"class_folders": "folder", "table": "any"}.get(kind, kind)
    if kind == "any" and "://" in value:
        return None
    place = Path(value).expanduser()
    if place.exists():
        is_folder = place.is_dir()
        if kind == ("file" if is_folder else "folder"):
            return f"expected a {kind}, got the {'folder' if is_folder else 'file'} {place}"
        return explain_other_format(place) if is_table else None
    return _describe_absent(place, "folder or file" if kind == "any" else kind)


def _describe_absent(place: Path, kind: str) -> str:
    """Describe the first part of a path that is not there."""
    while not (place.parent.is_dir() or place.parent == place):
        place = place.parent
        kind = "folder"
    hint = near_files(place, is_folder=kind == "folder")
    if not hint and not place.is_absolute():
        hint = f"; it is looked for in {Path.cwd()}"
    return f"there is no {kind} {place}{hint}"


def _check_run_paths(command: str, resolved: Resolved, option: Any, problems: Problems) -> None:
    """Check the run root, the run to resume and the checkpoint before anything is built.

    Args:
        command: Command that runs.
        resolved: The config.
        option: Value of `--ckpt_path`; None where the config sets it.
        problems: Takes what is wrong.
    """

    @contextmanager
    def noted_at(key: str) -> Iterator[None]:
        try:
            yield
        except LightkitError as error:
            text = str(error).removeprefix("--") if key else str(error)
            problems.add(error_at(text, resolved.origin_of(key) if key else None))

    section = resolved.section("run")
    root = section.get("root") or DEFAULT_ROOT
    name = section.get("name")
    name = name if isinstance(name, str) else None
    with noted_at("run.name"):
        if name is not None:
            runs.check_name(name)
    with noted_at("run.root" if section.get("root") else ""):  # a default stands nowhere
        if command != "export" and isinstance(root, str):  # an export makes no run
            _check_writable(root)
    with noted_at("run.resume"):
        if command == "fit" and isinstance(section.get("resume"), str):
            _check_resume(section["resume"], str(root), name)
    if option is None:
        with noted_at("ckpt_path"):
            _check_named_checkpoint(resolved.value_of("ckpt_path"))
    else:
        with noted_at(""):
            _check_named_checkpoint(option)


def _check_writable(root: str) -> None:
    """Check that runs can be written below a folder.

    Raises:
        ConfigError: If not.
    """
    if (error := explain_unwritable(root)) is not None:
        raise error


def _check_resume(resume: str, root: str, name: str | None) -> None:
    """Check that the run that a fit is to go on with is there.

    Raises:
        ConfigError: If not.
    """
    if resume in ("auto", "never"):
        return
    run = open_named_run(resume, root, name)
    if not run.config_path.is_file():
        text = (
            f"expected auto, never, latest or a run's folder; {resume} is not a run: it has no"
            " config.yaml."
        )
        raise ConfigError(f"run.resume: {text}")


def _check_named_checkpoint(named: Any) -> None:
    """Check a checkpoint that is named by its file.

    Raises:
        ConfigError: If it is not there, or no checkpoint.
    """
    if named is not None and not isinstance(named, str):
        raise ConfigError(f"ckpt_path: expected text or null, got {named!r}")
    if named and named not in ("best", "last"):
        check_checkpoint_file(named)


def _check_tracking(resolved: Resolved, problems: Problems) -> None:
    """Check that the installed MLflow knows the local databases that the config's loggers use.

    Args:
        resolved: The config.
        problems: Takes what is wrong.
    """
    root = resolved.section("run").get("root")
    for path, entry in resolved.entries_of("logger").items():
        name = str(runs.find_value(entry, "class_path")).rpartition(".")[2]
        uri = runs.find_value(entry, "init_args", "tracking_uri")
        is_lightnings = name == "MLFlowLogger" and str(uri).startswith("sqlite:")
        if name != "MLflow" and not is_lightnings:
            continue

        from lightkit.loggers.mlflow_address import find_address  # here: few configs need them
        from lightkit.loggers.mlflow_database import require_known_schema

        place = (*path, "init_args", "tracking_uri") if uri else (*path, "class_path")
        try:
            address = find_address(
                None if uri is None else str(uri), origin=dotted(place), root=Path(root or "runs")
            )
            require_known_schema(address)
        except ConfigError as error:
            problems.add(error_at(str(error), resolved.origin_of(place)))


def check_writable(folder: Path, *, setting: str) -> None:
    """Check that a folder can be written, before what fills it is built.

    Raises:
        ConfigError: If it cannot.
    """
    if (error := explain_unwritable(folder, setting=setting)) is not None:
        raise error


def explain_unwritable(root: str | Path, *, setting: str = "run.root") -> ConfigError | None:
    """Explain why a folder, which may not exist yet, cannot be written; None where it can.

    Args:
        root: The folder.
        setting: Key or option that names it.
    """
    folder = Path(root).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return None
    number = errno.ENOTDIR
    if folder.is_dir():
        number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    text = f"{setting}: cannot write {root}: {os.strerror(number)}"
    return ConfigError(f"{text}. Set {setting} to a folder that can be written.")


def find_missing_forward(resolved: Resolved, *, is_registered: bool) -> ConfigError | None:
    """Return why the model cannot be registered or exported, for it has no `forward`.

    None where it can.

    Lightning trains and scores a module without one. A registered or exported model is called by
    it.

    Args:
        resolved: The config.
        is_registered: Whether the config's gate leads to a registration; else to an export.

    Raises:
        ConfigError: If the class cannot be imported.
    """
    cls = _import_own_model(resolved)
    if cls is None or not lacks_forward(cls):
        return None
    caller = "an exported model is called"
    otherwise = "an export: lightkit fit, or lightkit retrain --skip export"
    if is_registered:
        metric = resolved.section("gate").get("metric")
        caller = f"a model in the registry is called, and the gate ({metric}) leads there"
        otherwise = "a registration: lightkit fit, or lightkit retrain --skip promote"
    return error_at(
        f"model: {cls.__name__} has no forward, by which {caller}. Add forward(self, inputs) to"
        f" {cls.__name__}; or train without {otherwise}",
        resolved.origin_of(("model", "class_path")),
    )


def require_prediction(resolved: Resolved) -> None:
    """Refuse to predict by a model that has neither `predict_step` nor `forward`.

    Raises:
        ConfigError: If the model lacks both, or its class cannot be imported.
    """
    cls = _import_own_model(resolved)
    if cls is None or not _lacks_prediction(cls):
        return
    raise error_at(
        f"model: {cls.__name__} has neither predict_step nor forward, by which predict computes."
        f" Add forward(self, inputs) to {cls.__name__}, or predict_step(self, batch, batch_idx)",
        resolved.origin_of(("model", "class_path")),
    )


def _import_own_model(resolved: Resolved) -> type | None:
    """Import the class of a config's model.

    None for one of lightkit's, and for what derives from no LightningModule, as a function.

    Raises:
        ConfigError: If it cannot be imported.
    """
    path = resolved.class_named("model")
    if path is None or "." not in path or path.startswith("lightkit."):
        return None
    cls = import_class(path)
    bases = [base.__module__ for base in getattr(cls, "__mro__", ())]
    return cls if _MODULES_OF_BASES[0] in bases else None


def require_export_hooks(resolved: Resolved, formats: Sequence[str], *, option: str) -> None:
    """Refuse formats that the module exports by itself where its class has no methods for them.

    Args:
        resolved: The config.
        formats: Names of formats of the module's own; nothing is imported where there is none.
        option: Option that names the formats, without its dashes.

    Raises:
        ConfigError: If the class of the model lacks one of the methods.
    """
    named = resolved.class_named("model")
    if not formats or named is None:
        return
    described = find_section_class("model", resolved, load_schema())
    path = named if described is None else described.path
    cls = import_class(path) if "." in path else None
    if not isinstance(cls, type):
        return  # a function that makes one: the export itself finds it
    missing = describe_missing_hooks(cls, formats)
    if missing is not None:
        raise error_at(f"--{option} {missing}", resolved.origin_of(("model", "class_path")))


def lacks_forward(cls: type) -> bool:
    """Return whether a class of modules has no `forward` and no `__call__` of its own.

    One that `__init__` may assign counts as its own. No torch, as the class was imported.
    """
    if any(_is_own(getattr(cls, name, None)) for name in ("forward", "__call__")):
        return False
    classes = list(cls.__mro__)
    at = [base.__module__ for base in classes].index(_MODULES_OF_BASES[0])
    if any(_is_own(vars(base).get("forward")) for base in classes[at:]):  # Lightning's calls it
        return False
    codes = [getattr(vars(base).get("__init__"), "__code__", None) for base in classes]
    return not any(code is not None and "forward" in code.co_names for code in codes)


def _is_own(method: object) -> bool:
    """Return whether a method is there and is not Lightning's or torch's."""
    return method is not None and getattr(method, "__module__", None) not in _MODULES_OF_BASES


def _lacks_prediction(cls: type) -> bool:
    """Return whether a class of modules has neither `predict_step` nor `forward` of its own."""
    return not _is_own(getattr(cls, "predict_step", None)) and lacks_forward(cls)
