"""Whether a run can be trained again here as it was, and the training. No torch before that begins."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.console import configure_console
from lightkit.cli.context import RunContext
from lightkit.cli.full_validation import open_context
from lightkit.cli.input_digests import compute_input_digests, hidden_values
from lightkit.config import PREFIX, RESERVED_VARIABLES, shown_path
from lightkit.errors import ConfigError, DataError
from lightkit.hardware import describe_packages, this_machine
from lightkit.launch.plan import THREADS
from lightkit.runs.signals import SignalWatch

__all__ = ["Order", "differences_here", "order_of", "trained_again"]

_SUFFIX = "-reproduced"
_log = logging.getLogger("lightkit")


@dataclass(frozen=True)
class Order:
    """A training that is to be done again.

    Args:
        run: The run.
        words: Words of ``fit`` for it.
        options: Those of them that came from the command line.
        manifest: The run's.
        watch: Handler of SIGINT and SIGTERM.
    """

    run: runs.Run
    words: Sequence[str]
    options: Sequence[str]
    manifest: Mapping[str, Any]
    watch: SignalWatch

    @property
    def again(self) -> runs.Run:
        """The new run, once it is trained."""
        return runs.list_runs(self.run.root, f"{self.run.name}{_SUFFIX}")[0]


def order_of(place: str, root: str, watch: SignalWatch, *, anyway: bool, options: Sequence[str]) -> Order:
    """Find a run and see whether it can be trained again as it was.

    Args:
        place: The run, as `--run` takes it.
        root: Folder of the runs.
        watch: Handler of SIGINT and SIGTERM.
        anyway: Go on with a warning where something differs.
        options: Options of ``fit`` from the command line.

    Raises:
        ConfigError: If there is no such run, it is no finished fit, had no seed, or its code, packages or hardware are
            not what is here.
        DataError: If only its data is not what it was.
    """
    run = runs.find(place, root)
    manifest = _manifest_of(run)
    order = Order(run, [*_words_of(run, manifest), *options], options, manifest, watch)
    with _without_variables():
        session = open_context("fit", order.words, watch)
    configure_console(session.mode, session.resolved.masked)
    if found := differences_here(order, session):
        _refuse(run, found, anyway=anyway)
    if resumed := len(manifest.get("earlier") or ()):
        times = "once" if resumed == 1 else f"{resumed} times"
        _log.warning("%s was interrupted %s and went on; it is trained again in one go", shown_path(run.folder), times)
    return order


def trained_again(order: Order) -> int:
    """Train, and write into the new run which one it repeats; the exit code of the training."""
    from lightkit.cli.stages import run as run_stage  # here: it may load what trains

    hardware = order.manifest.get("hardware") or {}
    with _without_variables():
        if (threads := hardware.get("threads")) and hardware.get("devices") in (None, 1):
            os.environ[THREADS] = str(threads)  # the order of sums depends on it
        code = run_stage("fit", list(order.words), order.watch)
    if code == 0:
        again = order.again
        manifest = runs.read_json(again.manifest_path) or {}
        runs.write_json(again.manifest_path, {**manifest, "parent": str(order.run.folder), "reproduces": order.run.id})
    return code


def differences_here(order: Order, session: RunContext) -> dict[str, list[str]]:
    """List what is not here as the run has recorded it, under ``code``, ``packages``, ``data`` and ``hardware``.

    Args:
        order: The run that is to be trained again.
        session: The fit that would do it.
    """
    manifest = order.manifest
    before = runs.read_inputs(order.run.folder)
    found: dict[str, list[str]] = {"code": _git_differences(manifest), "packages": [], "data": [], "hardware": []}
    packages = {"python": manifest.get("python"), **(manifest.get("packages") or {})}
    now = {"python": platform.python_version(), **describe_packages()}
    found["packages"] = [
        f"{name} {packages.get(name) or '(none)'} -> {now.get(name) or '(none)'}"
        for name in dict.fromkeys([*packages, *now])
        if packages.get(name) != now.get(name)
    ]
    found["hardware"] = _hardware_differences(manifest.get("hardware") or {}, session)
    if before is None:
        found["code"].append("the run has not recorded its code and its data")
        return {name: said for name, said in found.items() if said}
    _add_inputs(found, before, session)
    return {name: said for name, said in found.items() if said}


def _add_inputs(found: dict[str, list[str]], before: runs.Inputs, session: RunContext) -> None:
    """Compare data, Python files and lightkit's own code with what the run has begun with."""
    here = compute_input_digests(session, salt=before.salt, asked=before.data is not None)
    hidden = hidden_values(session.resolved, before.salt)
    data = {key: files for key, files in (here.data or {}).items() if key in (before.data or {})}
    both = replace(before, config={}, hidden={}, versions={}), replace(here, config={}, hidden={}, versions={})
    old = replace(both[0], data={}), replace(both[0], code={})
    new = replace(both[1], data={}, code={k: v for k, v in here.code.items() if k in before.code})
    found["code"] += [change.removeprefix("code: ") for change in runs.changes_between(old[0], new)]
    if before.versions.get("lightkit") != here.versions["lightkit"]:
        found["code"].append(f"lightkit {before.versions.get('lightkit')} -> {here.versions['lightkit']}")
    if before.mixed:
        found["data"].append("the run was interrupted and went on with other inputs")
    if before.data is not None:
        found["data"] += runs.changes_between(old[1], replace(both[1], code={}, data=data))
    gone = [key for key, digest in before.hidden.items() if key in hidden and hidden[key] != digest]
    found["data"] += [f"{key} has another value in the environment, which is not shown" for key in gone]
    found["data"] += [f"what is behind {key} cannot be seen" for key in before.unseen]


def _manifest_of(run: runs.Run) -> dict[str, Any]:
    """Give the manifest of a run that can be repeated at all.

    Raises:
        ConfigError: If it is no fit, has not ended well, or had no seed.
    """
    manifest, summary = runs.read_json(run.manifest_path), runs.read_json(run.summary_path) or {}
    where = shown_path(run.folder)
    if manifest is None or not run.config_path.is_file():
        raise ConfigError(f"reproduce: {where} has no {run.manifest_path.name} or no {run.config_path.name}.")
    if manifest.get("subcommand") != "fit" or manifest.get("fast_dev_run"):
        kind = "a fast_dev_run" if manifest.get("fast_dev_run") else f"a {manifest.get('subcommand')}"
        raise ConfigError(f"reproduce: {where} is {kind}; expected a fit that was trained to its end.")
    if summary.get("status") != "done":
        raise ConfigError(
            f"reproduce: {where} has not ended well (status: {summary.get('status')}), so there is nothing to compare "
            "with; `lightkit fit` goes on with it."
        )
    if manifest.get("seed") is None:
        raise ConfigError(
            f"reproduce: {where} was trained without a seed (seed_everything: false), and nobody can draw the same "
            "numbers again. Set seed_everything to a number for runs that are to be reproduced."
        )
    return manifest


def _words_of(run: runs.Run, manifest: Mapping[str, Any]) -> list[str]:
    words = ["-c", str(run.config_path), f"--seed_everything={manifest['seed']}"]
    words += [f"--run.name={run.name}{_SUFFIX}", f"--run.root={run.root}", "--run.resume=auto"]
    named = manifest.get("ckpt_path")
    if named in ("best", "last"):
        named = str(Path(str(manifest.get("parent")), "checkpoints", f"{named}.ckpt"))
    if named is not None and not Path(named).is_file():
        raise ConfigError(
            f"reproduce: {shown_path(run.folder)} began from {named}, which is gone. Put it back to repeat the run."
        )
    return words if named is None else [*words, f"--ckpt_path={named}"]


def _git_differences(manifest: Mapping[str, Any]) -> list[str]:
    before, now = manifest.get("git") or {}, runs.describe_git() or {}
    names = [str(git.get("commit") or "none")[:10] for git in (before, now)]
    found = [f"git commit {names[0]} -> {names[1]}"] if names[0] != names[1] else []
    if bool(before.get("dirty")) != bool(now.get("dirty")):
        which = "then" if before.get("dirty") else "now"
        found.append(f"files of the repository that are not committed: only {which}")
    return found


def _hardware_differences(before: Mapping[str, Any], session: RunContext) -> list[str]:
    now = runs.describe_hardware()
    found = [
        f"{name} {before[name]} -> {now[name]}"
        for name in ("cpu", "cores")
        if before.get(name) is not None and before[name] != now[name]
    ]
    gpus = [gpu.name for gpu in this_machine().gpus or ()]
    if missing := [name for name in before.get("gpus") or () if name not in gpus]:
        found.append(f"GPU {', '.join(missing)} -> {', '.join(gpus) or 'none'}")
    is_free = session.hardware.kind is None  # Lightning takes what there is
    if before.get("accelerator") == "cpu" and gpus and is_free:
        found.append(f"accelerator cpu -> {', '.join(gpus)}; --trainer.accelerator=cpu was not said")
    return found


def _refuse(run: runs.Run, found: Mapping[str, Sequence[str]], *, anyway: bool) -> None:
    lines = [f"  {name:<9} {said}" for name, all_said in found.items() for said in all_said]
    where = shown_path(run.folder)
    if anyway:
        _log.warning("%s is trained again though not all is as it was:\n%s", where, "\n".join(lines))
        return
    listed = "\n".join([f"reproduce: {where} cannot be reproduced here, because this differs:", *lines])
    kind = DataError if list(found) == ["data"] else ConfigError
    raise kind(f"{listed}\nPut it back as it was, or say --anyway to train all the same.")


@contextmanager
def _without_variables() -> Iterator[None]:
    """Leave out what would be laid over the run's config, which holds what such variables said when it was trained."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(PREFIX) and name not in RESERVED_VARIABLES:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
