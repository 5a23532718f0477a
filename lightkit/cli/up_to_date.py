"""``lightkit fit --if-changed``.

Compare config, data and code with those of the last successful fit. No torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from lightkit import runs
from lightkit.cli.class_sources import find_own_files, list_default_texts
from lightkit.cli.console import print_line
from lightkit.cli.stage_config import StageConfig
from lightkit.config import Resolved, shown_path
from lightkit.config.identity import is_in_earlier_identity, is_in_identity, select_identity
from lightkit.config.schema import ClassDescription, load_schema
from lightkit.config.validation import find_section_class
from lightkit.errors import ConfigError, DataError
from lightkit.images.flower_photos import flower_photos
from lightkit.images.verdicts import compute_file_digests
from lightkit.registry.gate import RECORD
from lightkit.registry.promotion import digests_of_inputs
from lightkit.runs import Inputs, Run, git_output
from lightkit.runs.index import promoted_aliases

_NOTHING_TO_DO = 6
_CHEAP_BYTES = 1_000_000_000
_CHEAP_FILES = 20_000
_COMMIT = re.compile(r"(\d{20})(\.json|\.checkpoint.*\.parquet)")
_LIBRARIES = ("lightkit", "lightning", "pytorch_lightning", "torch", "torchvision")
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][\w+.-]*://")


class Comparison(NamedTuple):
    """The inputs of a fit compared with those of earlier ones.

    Args:
        run: The run since which nothing has changed that could give another model; None where a
            training could.
        inputs: Inputs of this fit, as far as they were computed.
        reason: Why it trains.
    """

    run: Run | None
    inputs: Inputs | None
    reason: str


def check_up_to_date(stage_config: StageConfig) -> tuple[int | None, Inputs | None]:
    """Return the exit code if ``--if-changed`` is given and nothing has changed since the last fit.

    Else None.

    Three things are compared: the identity of the config as written; the content of the files that
    the data section names; and the Python files of the working directory and of the classes that
    the config names. No lock is taken: a fit that is needed waits for the job's lock itself.

    Returns:
        The exit code, and the inputs that were computed, for the run's records.

    Raises:
        ConfigError: If ``--unchanged-ok`` is given without ``--if-changed``.
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    options = stage_config.options
    if "unchanged-ok" in options and "if-changed" not in options:
        raise ConfigError(
            "--unchanged-ok: has no effect without --if-changed; add that, or leave it out"
        )
    if "if-changed" not in options or stage_config.only_prints:
        return None, None
    run, now, reason = compare_inputs(stage_config)
    if run is None or now is None:
        _log_reason(stage_config, now, reason)
        return None, now
    if stage_config.mode == "json":
        described = {"files": now.num_files, "size_bytes": now.size_bytes}
        runs.print_event(
            "unchanged", run=f"{run.name}/{run.id}", folder=str(run.folder), data=described
        )
    is_refused = runs.find_value(runs.read_json(run.folder / RECORD), "passed") is False
    refused = ", which the gate refused" if is_refused else ""
    print_line(
        f"nothing has changed since {shown_path(run.folder)}{refused} ({now.summary})",
        stage_config.mode,
    )
    return (0 if options.get("unchanged-ok") else _NOTHING_TO_DO), now


def _log_reason(stage_config: StageConfig, now: Inputs | None, reason: str) -> None:
    """Log why a fit trains; also with ``--quiet`` where it will tomorrow, too."""
    log = logging.getLogger("lightkit")
    if now is not None and _explain_unseen(stage_config, now) == reason:
        log.warning(f"trains each time: {reason}")
    else:
        log.info(f"trains: {reason}")


def compare_inputs(stage_config: StageConfig) -> Comparison:
    """Compare the inputs of a fit with those of the job's last one, and of the promoted runs.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    run, reason = _find_last_fit(stage_config)
    if run is None:
        return Comparison(None, None, reason)
    promoted = [
        each
        for each in runs.list_runs(run.root, run.name)
        if each != run and promoted_aliases(each)
    ]
    first: Inputs | None = None
    reasons = []
    # after an experiment that was rejected, the champion's inputs are no news
    for each in (run, *promoted):
        now = compute_inputs(stage_config, salt=each.id, asked=True)
        found = _find_change(
            stage_config, shown_path(each.folder), runs.read_inputs(each.folder), now
        )
        if found is None:
            return Comparison(each, now, "")
        first = first or now
        reasons.append(found)
    return Comparison(None, first, reasons[0])


def _find_last_fit(stage_config: StageConfig) -> tuple[Run | None, str]:
    """Return the newest fit of the job if it has ended well.

    Else None and why there is nothing to compare with.
    """
    root = stage_config.run_root
    name = stage_config.job_name
    for run in runs.list_runs(root, name):
        manifest = runs.read_json(run.manifest_path) or {}
        if manifest.get("subcommand", "fit") == "fit" and not manifest.get("fast_dev_run"):
            reason = _describe_bad_end(run, name)
            return (run, "") if reason is None else (None, reason)
    return None, f"there is no earlier run of {name!r} in {root}"


def _describe_bad_end(run: Run, name: str) -> str | None:
    """Describe why a fit is not one to compare with.

    None where it has ended well and all of it is there.
    """
    summary = runs.read_json(run.summary_path) or {}
    where = shown_path(run.folder)
    if summary.get("status") != "done" or summary.get("exit_code") != 0:
        return f"{where}, the last run of {name!r}, has not ended well"
    if stopped_by := summary.get("stopped_by"):
        return f"{where}, the last run of {name!r}, was cut short by its {stopped_by}"
    paths = summary.get("paths") or {}
    for key in ("best_checkpoint", "last_checkpoint"):
        if paths.get(key) and not Path(run.folder, paths[key]).exists():
            return f"{where} has lost its {paths[key]}"
    return None


def _find_change(
    stage_config: StageConfig, where: str, before: Inputs | None, now: Inputs
) -> str | None:
    """Return why a training could give another model than that run's.

    None if it would repeat it.
    """
    if before is None or before.data is None:
        return (
            f"{where} has no record of"
            f" {'its inputs' if before is None else 'its data, which are large'}; now it has"
        )
    if changes := runs.list_changes(select_identity_of(before), now):
        return f"changed since {where}: {runs.join_changes(changes)}"
    return _explain_unseen(stage_config, now)


def _explain_unseen(stage_config: StageConfig, now: Inputs) -> str | None:
    """Return which data of a config cannot be compared, so that it trains each time.

    None where all can be.
    """
    if now.unseen:
        return (
            f"--if-changed cannot see what is behind {', '.join(now.unseen)}; name local files or"
            " folders there"
        )
    if _sees_data(stage_config.resolved, now):
        return None
    name = stage_config.resolved.class_named("data") or "the data module"
    return (
        f"--if-changed cannot see what {name} reads, as no argument of it, nor the default of one,"
        " names a file or a folder; name the file or folder as an argument of the data module"
    )


def _sees_data(resolved: Resolved, now: Inputs) -> bool:
    """Return whether all that the data module reads is compared."""
    is_named = _find_lightkit_class(resolved) is not None or any(
        key.startswith("data") for key in now.data or {}
    )
    return is_named or not resolved.value_of("data")


def select_identity_of(inputs: Inputs) -> Inputs:
    """Return inputs without what a run of an earlier version has noted beyond the identity."""
    config = select_identity(inputs.config)
    hidden = {
        key: digest for key, digest in inputs.hidden.items() if is_in_identity(key, inputs.config)
    }
    return replace(inputs, config=config, hidden=hidden)


def compute_inputs(stage_config: StageConfig, *, salt: str, asked: bool) -> Inputs:
    """Compute the digests of a fit's config, data and code. Unchanged files are not read again.

    Args:
        stage_config: Config of the fit.
        salt: Salt of the digests of values that must not be seen.
        asked: Whether ``--if-changed`` asks for it; else data of more than 1 GB or 20,000 files are
            left out.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    texts = _list_data_texts(stage_config)
    config, hidden = split_values(stage_config, salt)
    code = compute_code_digests(stage_config.run_root, list_class_paths(stage_config.resolved))
    inputs = Inputs(
        config, hidden, unseen=_list_unseen(texts, stage_config.resolved), code=code, salt=salt
    )

    # List the files behind the texts, as far as they are cheap to read.
    places = {key: path for key, text in texts.items() if (path := _find_path(text)) is not None}
    files = (
        (key, *file)
        for key, path in places.items()
        for file in _list_files(path, stage_config.run_root)
    )
    found = list(islice(files, None if asked else _CHEAP_FILES + 1))
    if not asked and (
        len(found) > _CHEAP_FILES or sum(os.path.getsize(path) for *_, path in found) > _CHEAP_BYTES  # noqa: PTH202
    ):
        return inputs
    digests: dict[str, dict[str, str]] = {key: {} for key in places}
    size_bytes = 0
    for (key, name, _), file in zip(
        found, compute_file_digests(path for *_, path in found), strict=True
    ):
        digests[key][_printable(name)] = file.digest[:32]
        size_bytes += file.size_bytes
    return replace(inputs, data=digests, size_bytes=size_bytes)


def _list_unseen(texts: Mapping[str, str], resolved: Resolved) -> tuple[str, ...]:
    """List the keys of addresses whose content is not compared.

    lightkit's own classes use those of http in `fetch`.
    """
    is_own = _find_lightkit_class(resolved) is not None
    addresses = [key for key, text in texts.items() if _ADDRESS.match(text)]
    return tuple(key for key in addresses if not (is_own and texts[key].startswith("http")))


def digest_inputs_of_scores(stage_config: StageConfig, run: Run) -> dict[str, str]:
    """Return the digests of the config, the data and the code by which a run is scored.

    Without its checkpoint.

    Args:
        stage_config: The command on the run.
        run: The run, whose id is the salt of values that must not be seen.

    Returns:
        Empty where one of them cannot be seen, or is too large to be read, so that nothing can be
        compared.
    """
    try:
        inputs = compute_inputs(replace(stage_config, ckpt_path=None), salt=run.id, asked=False)
    except DataError:  # the photos are gone
        return {}
    return (
        digests_of_inputs({"inputs": inputs.digests})
        if _sees_data(stage_config.resolved, inputs)
        else {}
    )


def compute_code_digests(run_root: Path, class_paths: Collection[str] = ()) -> dict[str, str]:
    """Compute the digests of the Python files of the working directory.

    Also compute those of the own classes that a config names.

    In a git work tree they are the files that git tracks or would add; else all but those in hidden
    folders, virtual environments and the folder of runs. A class from elsewhere, or of a file that
    git ignores, counts with its package.

    Args:
        run_root: Folder of all runs.
        class_paths: Paths of classes.

    Returns:
        By their paths in the working directory, or in the folder that they are imported from.
    """
    tracked = (
        git_output("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py")
        or ""
    )
    names = sorted({name for name in tracked.split("\0") if Path(name).is_file()})
    names = names or [name for name, _ in _walk(Path(), run_root) if name.endswith(".py")]
    files = {name: Path(name) for name in names}
    known = {path.resolve() for path in files.values()}
    for class_path in class_paths:
        for name, path in find_own_files(class_path).items():
            if path.resolve() not in known:
                files.setdefault(name, path)
    found = compute_file_digests(map(str, files.values()))
    return {_printable(name): each.digest for name, each in zip(files, found, strict=True)}


def list_class_paths(resolved: Resolved) -> list[str]:
    """List the paths of the classes that a config names.

    Without those of lightkit, Lightning and torch.
    """
    values = resolved.values
    found = [resolved.class_named(section) for section in ("model", "data")]
    found += _list_named_classes(values)
    trainer = resolved.section("trainer")
    for key in ("callbacks", "logger", "plugins"):  # of which a class without arguments may be text
        listed = trainer.get(key)
        found += (
            [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        )
    given = [path for path in found if path is not None and "." in path]
    return [path for path in dict.fromkeys(given) if path.partition(".")[0] not in _LIBRARIES]


def _list_named_classes(value: Any) -> Iterator[str]:
    """List the values of each ``class_path``."""
    if isinstance(value, Mapping):
        named = value.get("class_path")
        if isinstance(named, str):
            yield named
        for child in value.values():
            yield from _list_named_classes(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield from _list_named_classes(child)


def record_inputs(
    stage_config: StageConfig, run: Run, previous: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Write ``inputs.json``, and return its entry in the manifest.

    A run that is resumed with other inputs than it began with has no record: its model is made from
    both.

    Args:
        stage_config: The invocation.
        run: Its run.
        previous: The run's manifest, if it is resumed.
    """
    if stage_config.inputs_now is None:
        inputs = compute_inputs(
            stage_config, salt=run.id, asked="if-changed" in stage_config.options
        )
    else:
        hidden = split_values(stage_config, run.id)[1]
        inputs = replace(stage_config.inputs_now, salt=run.id, hidden=hidden)
    if previous is not None:
        before = runs.read_inputs(run.folder)
        if before is None or select_identity_of(before).digests != inputs.digests:
            (run.folder / runs.INPUTS).unlink(missing_ok=True)
            return None
    inputs.write(run.folder)
    return {**inputs.digests, "earlier_config": _digest_earlier(stage_config, inputs)}


def _digest_earlier(stage_config: StageConfig, inputs: Inputs) -> str:
    """Return the digest of the config by the list of earlier versions.

    Models were rolled back by it.
    """
    config, hidden = split_values(stage_config, inputs.salt, is_in_earlier_identity)
    digest: str = replace(inputs, config=config, hidden=hidden).digests["config"]
    return digest


def split_values(
    stage_config: StageConfig,
    salt: str,
    counts: Callable[[str, Mapping[str, Any]], bool] = is_in_identity,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the identity's values as written, without secrets.

    With salted digests of the secret ones, by dotted key.

    Args:
        stage_config: The invocation.
        salt: Salt of the digests.
        counts: Whether a dotted key is in the identity, by all values.
    """
    values = stage_config.written.values
    shown = {
        key: value for key, value in values.items() if key != "ckpt_path" and counts(key, values)
    }
    hidden = {
        key: hashlib.sha256(json.dumps([salt, text]).encode()).hexdigest()[:32]
        for key, text in stage_config.written.secrets.items()
        if key in shown
    }
    if stage_config.ckpt_path is not None:  # an option names it, too
        shown["ckpt_path"] = stage_config.resolved.masked(stage_config.ckpt_path)
    return shown, hidden


def _find_lightkit_class(resolved: Resolved) -> ClassDescription | None:
    """Return the description of the data module's class if it is one of lightkit's."""
    found = find_section_class("data", resolved, load_schema())
    return found if found is not None and found.path.startswith("lightkit.") else None


def _list_data_texts(stage_config: StageConfig) -> dict[str, str]:
    """List the texts that may name data by their dotted keys.

    With the defaults of the data module's arguments.
    """
    data = stage_config.resolved.value_of("data")
    described = _find_lightkit_class(stage_config.resolved)
    texts = dict(_list_texts("ckpt_path", stage_config.ckpt_path))
    if described is not None:
        texts |= _list_texts("data.init_args", described.defaults)
    elif (own := stage_config.resolved.class_named("data")) is not None:
        arguments = (data.get("init_args") if isinstance(data, Mapping) else None) or {}
        defaults = {
            name: text for name, text in list_default_texts(own).items() if name not in arguments
        }
        texts |= _list_texts("data.init_args", defaults)
    texts |= _list_texts("data", data)
    is_flowers = described is not None and described.path == "lightkit.data.Flowers"
    if is_flowers and "data.init_args.root" not in texts:
        texts["data.init_args.root"] = str(flower_photos() or "")
    return texts


def _list_texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (Mapping, list, tuple)):
        for name, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _list_texts(f"{key}.{name}", child)


def _find_path(text: str) -> Path | None:
    try:
        path = Path(text.removeprefix("file://")).expanduser()
        return path if text.strip() and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # too long for a name, with a null in it, or of an unknown user
        return None


def _list_files(path: Path, run_root: Path) -> Iterator[tuple[str, str]]:
    """List the files of a folder, the newest commit of a Delta table, or a file.

    The name within, and the path.
    """
    log = path / "_delta_log"
    if log.is_dir():  # each state of the table has a new commit, and its files never change
        names = (entry.name for entry in log.iterdir() if _COMMIT.fullmatch(entry.name))
        if newest := max(names, key=lambda name: (name[:20], name.endswith(".json")), default=None):
            yield f"_delta_log/{newest}", str(log / newest)
    elif path.is_dir():
        yield from _walk(path, run_root)
    else:
        yield path.name, str(path)


def _walk(top: Path, run_root: Path) -> Iterator[tuple[str, str]]:
    """List the visible files below a folder.

    Also below links, without virtual environments and the runs.
    """
    seen = {str(run_root.resolve())}
    for folder, folders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or "pyvenv.cfg" in names:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118 (pathlib would make an object of each of very many)
            if name[0] != "." and os.path.isfile(path):  # noqa: PTH113
                yield os.path.relpath(path, top), path


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
