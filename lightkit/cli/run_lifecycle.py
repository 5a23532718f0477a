"""A run from its beginning to its end: job lock, folder, checkpoint, saved config, manifest, recorded end."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import yaml

from lightkit import config, runs
from lightkit.callbacks import RunRecorder
from lightkit.cli.console import print_line
from lightkit.cli.context import RunContext, create_job_lock
from lightkit.cli.monitors import find_config_modes, list_mode_warnings
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.redaction import redact_command_line
from lightkit.cli.up_to_date import record_inputs, split_values
from lightkit.config.display import format_origin, iterate_leaves
from lightkit.config.identity import can_change_score
from lightkit.config.origins import shown_path
from lightkit.config.packaged import PREFIX, packaged_configs
from lightkit.config.yaml_reader import YamlLoader
from lightkit.errors import ConfigError, DataError, Interrupted, OutOfTime, format_interruption
from lightkit.launch.worker import INHERITED
from lightkit.reports.facts import setting_key
from lightkit.runs.ci_report import add_fit_page
from lightkit.runs.index import flatten, read_config
from lightkit.runs.resume import RunSettings, RunStart, choose_start, resume_run


def start_run(context: RunContext, settings: RunSettings, *, seed: int | None, is_trial: bool) -> None:
    """Choose the run and its checkpoint, record the beginning, and let `context.stack` record the end.

    Ranks other than the first take the run that the first one has announced.

    Args:
        context: The invocation; gets `start` and `recorder`. Its `saved_config` is written to the run folder.
        settings: The config's `run` section, with its name filled in.
        seed: The seed in use, if any.
        is_trial: Whether it is a `fast_dev_run`, which resumes nothing.

    Raises:
        ConfigError: If what the user names is not there, or the run root cannot be written.
        RunLocked: If another process runs this job.
    """
    rank = context.rank_context
    trains = context.command == "fit" and context.base is None
    if (announced := _read_announcement(context)) is not None:
        run = runs.open_run(announced["folder"], resumed=announced["resumed"])
        checkpoint = announced["checkpoint"]
        context.start = RunStart(run, checkpoint=None if checkpoint is None else Path(checkpoint))
        if rank is not None:
            rank.keep_log(run.folder)
        context.recorder = RunRecorder(run, events=_open_events(context))
        return
    earlier = rank.earlier_run() if rank is not None and trains else None
    lock = _lock_job(context, settings) if trains else None
    if context.base is not None:
        checkpoint = None if context.ckpt_path is None else Path(context.ckpt_path)
        context.start = RunStart(context.base, checkpoint=checkpoint, is_old=True)
    elif earlier is not None:
        context.start = resume_run(runs.open_run(earlier["folder"]), first=earlier["first_checkpoint"])
    else:
        context.start = choose_start(
            settings,
            config=context.saved_config,
            ckpt_path=context.ckpt_path,
            fresh=is_trial or not trains,
            environment=lambda salt: split_values(context, salt)[1],
            by_rule=context.hardware.chosen,
        )
    run = context.run
    used = context.start.checkpoint
    if lock is not None:
        runs.remove_leftovers(run.checkpoints)
    elif used is None and context.weights is None:
        context.tell("the model is untrained: neither --run nor --ckpt_path names a checkpoint")
    manifest = None if context.base is not None else _record_start(context, seed=seed, is_trial=is_trial)
    if lock is not None:
        lock.note_folder(run.folder)  # for a retrain, which goes on with a run that has a manifest
    events = _open_events(context, mirror=sys.stdout if context.mode == "json" else None)
    context.recorder = RunRecorder(
        run,
        events=events,
        manifest=manifest,
        checkpoint=used,
        changed=_list_changed_settings(context),
        modes=find_config_modes(context.resolved) if trains else None,
    )
    for path, fault in context.start.passed_over:
        taken = used and runs.relative(used, run.folder)
        events.write("fallback", path=runs.relative(path, run.folder), used=taken, reason=fault)
    is_reported = settings.report and not is_trial and context.command in ("fit", "test")
    context.stack.enter_context(_finish_run(context, is_reported=is_reported and IN_RETRAIN not in os.environ))
    for warning in list_mode_warnings(context.resolved) if trains else ():
        logging.getLogger("lightkit").warning(warning)
    _announce(context, earlier)


def _lock_job(context: RunContext, settings: RunSettings) -> runs.Lock:
    """Take the job's lock until the context ends."""
    lock = create_job_lock(context, settings)
    lock.acquire()

    @context.stack.callback
    def release() -> None:
        with context.watch.deferring():
            lock.release()

    return lock


def _open_events(context: RunContext, *, mirror: TextIO | None = None) -> runs.EventStream:
    return runs.EventStream(context.run.events_path, mirror=mirror, redact=context.resolved.masked)


def _record_start(context: RunContext, *, seed: int | None, is_trial: bool) -> dict[str, Any]:
    """Write the config and the manifest into the run folder, and return the manifest."""
    start = context.start
    run = context.run
    if start.notice:
        context.tell(start.notice)
    runs.write_text(run.config_path, config.dump_yaml(context.saved_config))
    previous = runs.read_json(run.manifest_path)
    manifest = runs.build_manifest(
        subcommand=context.command,
        command=["lightkit", context.command, *redact_command_line(context.resolved, context.invocation.words)],
        run=f"{run.name}/{run.id}",
        seed=seed,
        parent=None if start.parent is None else str(start.parent.folder),
        previous=previous,
    )
    manifest |= {"ckpt_path": context.ckpt_path, "fast_dev_run": is_trial}
    manifest["environment"] = split_values(context, run.id)[1]
    names = {path: f"{PREFIX}{name}" for name, path in packaged_configs().items()}
    manifest["origins"] = {
        setting_key(path): context.resolved.masked(format_origin(replace(node.origin, name=name)))
        for path, node in iterate_leaves(context.resolved.tree, ())
        if node.origin.kind != "default" and (name := names.get(node.origin.file or Path(), node.origin.name))
    }
    if context.command == "fit" and not is_trial:
        manifest["inputs"] = record_inputs(context, run, previous)
    runs.write_json(run.manifest_path, manifest)
    return manifest


def _list_changed_settings(context: RunContext) -> dict[str, Any]:
    """Return what may change a score and differs between the configs of a later stage and of its run: key and value.

    It is of the sections data and model, and little of the trainer's.
    """
    if context.base is None or context.command not in ("validate", "test"):
        return {}
    # both as YAML has them
    saved = yaml.load(config.dump_yaml(context.saved_config), Loader=YamlLoader)  # noqa: S506 - a safe loader
    before = dict(flatten(read_config(context.base)))
    now = dict(flatten(saved))

    changed: dict[str, Any] = {}
    for path in dict.fromkeys([*now, *before]):
        is_same = path in now and path in before and now[path] == before[path]
        # of another version of a class, whose default it is
        is_new_default = path not in before and path not in context.resolved.origins
        if can_change_score(path, context.command) and not is_same and not is_new_default:
            changed[setting_key(path)] = now.get(path)
    return changed


# -- the other ranks of the same run -----------------------------------------------------------------------------------


def _read_announcement(context: RunContext) -> dict[str, Any] | None:
    """Return what rank 0 announces of the run; None in the process that begins it."""
    if text := os.environ.get(INHERITED):
        inherited: dict[str, Any] = json.loads(text)
        return inherited
    if context.rank_context is None or context.rank_context.rank.rank == 0:
        return None
    return context.rank_context.wait_for_run(context.launch.timeout_s)


def _announce(context: RunContext, earlier: Mapping[str, Any] | None) -> None:
    checkpoint = None if context.start.checkpoint is None else str(context.start.checkpoint)
    announcement = {
        "folder": str(context.run.folder),
        "resumed": context.run.resumed,
        "checkpoint": checkpoint,
        "first_checkpoint": checkpoint if earlier is None else earlier["first_checkpoint"],
    }
    if context.rank_context is not None:
        context.rank_context.announce_run(announcement)
    os.environ[INHERITED] = json.dumps(announcement)
    context.stack.callback(os.environ.pop, INHERITED, None)


# -- the end -----------------------------------------------------------------------------------------------------------


@contextmanager
def _finish_run(context: RunContext, *, is_reported: bool) -> Iterator[None]:
    """Record how the run ends, and report it; an error before training has begun leaves no folder of a new run."""
    run = context.run
    watch = context.watch
    raised: BaseException | None = None
    context.recorder.start()
    watch.last_words = partial(_finish_by_force, context)
    try:
        yield
    except BaseException as error:
        raised = _add_checkpoint(error, context)
        if raised is error:
            raise
        raise raised from error
    finally:
        with watch.deferring():  # a signal now would leave half of the end
            context.recorder.close(raised)
        has_no_use = context.nothing_left or isinstance(raised, (ConfigError, DataError))
        if has_no_use and not (context.start.is_old or context.has_trained):
            shutil.rmtree(run.folder, ignore_errors=True)
        elif context.command == "fit":
            add_fit_page(run)
        is_over = raised is None or (isinstance(raised, Exception) and not isinstance(raised, OutOfTime))
        if is_reported and is_over and run.manifest_path.exists():
            from lightkit.reports.pages import try_run_report  # here: it loads Jinja2 and Matplotlib

            with watch.deferring():
                page = try_run_report(run)
            if page is not None and raised is None:
                print_line(f"report {shown_path(page)}", context.mode)


def _add_checkpoint(error: BaseException, context: RunContext) -> BaseException:
    """Return the interruption of a fit with the checkpoint that it resumes from, where it does not know it."""
    watch = context.watch
    signum = error.signum if isinstance(error, Interrupted) else context.watch.received
    # A signal to the whole process group has ended the loaders' processes before the batch was done, or a library that
    # was being imported has raised an error of its own in place of the interruption.
    is_of_signal = isinstance(error, Exception) and (watch.explains(error) or "DataLoader worker" in str(error))
    if signum is None or not (isinstance(error, Interrupted) or is_of_signal) or getattr(error, "checkpoint", None):
        return error
    checkpoint = runs.last_good(context.run.checkpoints) if context.command == "fit" else None
    return Interrupted(signum, checkpoint=checkpoint)


def _finish_by_force(context: RunContext, signum: int) -> int:
    """Record the end of a process that does not end after a signal, and return its exit code."""
    newest = runs.newest_written(context.run.checkpoints) if context.command == "fit" else None
    interruption = Interrupted(signum, checkpoint=newest)
    context.recorder.close(interruption)
    if context.rank_context is not None:
        return context.rank_context.end_by_force(interruption)
    context.tell(format_interruption(interruption))
    return interruption.exit_code
