"""Errors of jsonargparse and Lightning with the key that they are about, and its place.

No torch.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lightkit import runs
from lightkit.cli.console import BROADCAST_LOSS
from lightkit.config import KeyPath, Origin, Resolved, dotted, error_at, near
from lightkit.config.resolved import FollowUpError, original_path
from lightkit.config.tree import Leaf, Node, walk
from lightkit.errors import ConfigError, LightkitError, exception_chain

_MISSING = re.compile(r"the following arguments are required: (.+)")
_UNKNOWN_KEY = re.compile(r"does not accept option '([^']+)'|Key '([\w.+-]+)' is not expected")
_NO_CLASS = re.compile(r"Option '([^']+)' is not accepted")
"""Of jsonargparse 4.53: arguments of a class that nothing names."""
_EXAMPLES = {
    "optimizer": "AdamW",
    "lr_scheduler": "CosineAnnealingLR",
    "model": "ImageClassifier",
    "data": "ImageFolder",
}
_AROUND = (
    "Does not validate against any of the Union",
    "Subtypes: ",
    "Errors:",
    "Expected a path but",
)
"""Lines of jsonargparse 4.53 above the one with the error, and that of text that is no file
either."""


def explain_parser_error(
    error: Exception, resolved: Resolved, *, keys: Iterable[str]
) -> ConfigError:
    """Turn an error of jsonargparse into one with the user's key and the place where it was set.

    What the schema and the signatures of classes show is found by `validate_signatures`; here come
    the values that only jsonargparse can judge, and the arguments of a script.

    Args:
        error: What jsonargparse raised.
        resolved: The config that was parsed.
        keys: Dotted keys that the parser knows, for near names.
    """
    message = resolved.masked(str(error))
    if match := _UNKNOWN_KEY.search(message):
        key = next(filter(None, match.groups())).removeprefix(f"{resolved.subcommand}.")
        path = resolved.lightkit_path(key)
        origin = resolved.origin_of(path)
        return error_at(f"{dotted(path)}: no such key{near(key, keys)}", origin and origin.at_key())
    path, line = _find_place(message, resolved)
    if (match := _NO_CLASS.match(line)) and dotted(path) in _EXAMPLES:
        line = _explain_missing_class(dotted(path), match[1], resolved)
    found = error_at(
        f"{dotted(original_path(path, resolved.removed))}: {line}", resolved.origin_of(path)
    )
    if missing := _MISSING.search(line):
        if resolved.removed or resolved.is_incomplete:
            return FollowUpError(str(found), places=found.places)
        name = missing[1].replace(f"{resolved.subcommand}.", "")
        message = f"{name}: missing; set it in a file given with -c, or with --{name}=VALUE"
    return found if path else ConfigError(message)


def _find_place(message: str, resolved: Resolved) -> tuple[KeyPath, str]:
    """Return the path that a message of jsonargparse leads to line by line.

    Also return the line with the error.
    """
    path: KeyPath = ()
    line = ""
    for line in (line.strip(" -") for line in message.splitlines()):
        if match := re.match(r'Parser key "([^"]+)"', line):
            path = (
                (*path, "init_args", *match[1].split("."))
                if path
                else resolved.lightkit_path(match[1])
            )
        elif match := re.match(r"Problem with given class_path '([^']+)'", line):
            path = next(
                (found for found, node in walk(resolved.tree) if _names_class(node, match[1])), path
            )
            path = path[:-1] if path[-1:] == ("class_path",) else path
        elif line and not line.startswith(_AROUND):
            break
    return path, line


def _explain_missing_class(section: str, argument: str, resolved: Resolved) -> str:
    """Explain that an argument is set in a section that names no class."""
    text = (
        f"{argument!r} is set, but no class that takes it; name one, such as"
        f" --{section}={_EXAMPLES[section]}"
    )
    model = str(resolved.class_named("model")).rpartition(".")[2]
    is_own_rate = model in ("ImageClassifier", "Regressor", "TextClassifier")
    if section == "optimizer" and argument == "lr" and is_own_rate:
        text += "; the rate of the model's own optimizer is model.init_args.learning_rate"
    return text


def _names_class(node: Node, class_path: str) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, str) and value.rpartition(".")[2] == class_path.rpartition(".")[2]


def add_place(error: LightkitError, resolved: Resolved) -> LightkitError:
    """Add the place of the first dotted key that the error names and the user has set.

    Unless it shows one.

    What came from the environment is a reference in it.
    """
    error = error.reworded(resolved.masked)
    keys = [] if "-->" in str(error) else re.findall(r"(?<![\w.])[a-z_]+(?:\.\w+)+", str(error))
    origins = [resolved.origins.get(resolved.lightkit_path(key)) for key in keys]
    places = [
        origin.render() for origin in origins if origin is not None and origin.kind != "default"
    ]
    return error.reworded(lambda text: f"{text}\n{places[0]}") if places else error


_SECTIONS = ("trainer", "callbacks", "logger", "lr_scheduler", "optimizer")
_NO_METRIC = (  # EarlyStopping of Lightning 2.6.6, a RuntimeError
    "Early stopping conditioned on metric"
)
_OTHER_STATES = {
    "Error(s) in loading state_dict": "model",  # torch
    "loaded state dict ": "optimizer",  # torch's optimizers, of their groups of parameters
}
_NO_PACKAGE = "Requirement '"  # lightning_utilities, of loggers whose package is not installed
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRAPPINGS = (
    "Does not validate against any of the Union",
    "Parser key ",
    "Problem with given class_path",
)


@contextmanager
def explain_lightning_errors(resolved: Resolved) -> Iterator[None]:
    """Replace what Lightning refuses by clear errors, and show where their keys are set.

    A crash passes.

    Raises:
        LightkitError: In the place of Lightning's error, or of one without its place.
    """
    # here: it loads torch
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    try:
        yield
    except LightkitError as error:
        raise add_place(error, resolved) from error
    except MisconfigurationException as error:
        raise locate_lightning_error(error, resolved) from error
    except pickle.UnpicklingError as error:  # of a strategy or a plugin that reads files by itself
        names = runs.find_class_names(str(error))
        first = (str(error) or type(error).__name__).splitlines()[0]
        text = (
            runs.refusal("the checkpoint", names)
            if names
            else f"the checkpoint cannot be read: {first}"
        )
        raise ConfigError(text) from error
    except UserWarning as error:  # of the one filter that turns a warning into an error
        reason = explain_broadcast_loss(error)
        if reason is None:
            raise
        raise ConfigError(reason) from error
    except (RuntimeError, ImportError, ValueError, TypeError, AttributeError) as error:
        reason = explain_port(error) or explain_predict_step(error) or explain_other_weights(error)
        if reason is not None:
            raise ConfigError(reason) from error
        if not str(error).startswith((_NO_METRIC, _NO_PACKAGE)):
            raise
        raise locate_lightning_error(error, resolved) from error


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Replace the system's error of a disk that is full or cannot be written.

    Raises:
        LightkitError: In its place, with how to go on.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        file = error.filename or "a file of this run"
        raise LightkitError(
            f"{error.strerror}: {file} cannot be written. Make room, or let the disk be written"
            " again; then run the same command to resume."
        ) from error


@contextmanager
def unwrap_errors() -> Iterator[None]:
    """Raise the error of a constructor again, which jsonargparse has wrapped in one of its own."""
    # here: it loads torch
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    try:
        yield
    except ValueError as error:
        causes = list(exception_chain(error))
        own = (
            cause
            for cause in causes
            if isinstance(cause, (LightkitError, MisconfigurationException))
        )
        raised = (cause for cause in causes if not str(cause).startswith(_WRAPPINGS))
        original = next(own, next(raised, error))
        if original is error:
            raise
        raise original from original.__cause__


_PORT = re.compile(r"port:? ?(\d+)")


def explain_port(error: Exception) -> str | None:
    """Explain that the port at which the ranks meet is taken; None for any other error."""
    if "EADDRINUSE" not in str(error):
        return None
    port = os.environ.get("MASTER_PORT") or getattr(
        _PORT.search(str(error)), "group", lambda _: ""
    )(1)
    return (
        f"MASTER_PORT: the port {port} of this machine, at which the ranks are to meet, is used by"
        " another program, such as another training. Set MASTER_PORT to a free one, or leave it"
        " out: then lightkit chooses a free one."
    )


def explain_other_weights(error: BaseException) -> str | None:
    """Explain that a checkpoint is that of another model or optimizer; None for any other error."""
    text = str(error)
    for beginning, part in _OTHER_STATES.items():
        if isinstance(error, (RuntimeError, ValueError)) and text.startswith(beginning):
            return f"the checkpoint does not fit the {part}: {' '.join(text.split())}"
    return None


def explain_broadcast_loss(warning: Warning) -> str | None:
    """Explain a loss of outputs and targets whose shapes broadcast to pairs.

    None for another warning.
    """
    found = re.match(BROADCAST_LOSS, str(warning))
    if found is None:
        return None
    outputs = found["outputs"]
    targets = found["targets"]
    remedy = "targets.squeeze(1)" if found["column"] else "outputs.squeeze(1)"
    return (
        f"model: the loss takes outputs of shape ({outputs}{'' if ',' in outputs else ','}) and"
        f" targets of shape ({targets}{'' if ',' in targets else ','}), so that torch compares each"
        " output with each target, and the result is the loss of no"
        f" model. Take {remedy} in the step"
    )


def explain_predict_step(error: BaseException) -> str | None:
    """Explain that `forward` was given a whole batch, since the module has no `predict_step`.

    None for other errors.

    Lightning's `predict_step` calls the module with the batch as the loader gives it, with its
    targets.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_name != "predict_step" or not code.co_filename.endswith(
            "pytorch_lightning/core/module.py"
        ):
            continue
        batch = frame.f_locals.get("batch")
        module = type(frame.f_locals.get("self")).__name__
        if not isinstance(batch, (list, tuple, dict)):
            return None
        kind = f"a {type(batch).__name__} of {len(batch)}"
        return (
            f"model: {module} has no predict_step, so that its forward is given each batch as the"
            f" data gives it, {kind} with the targets, and fails: {type(error).__name__}:"
            f" {' '.join(str(error).split())}\nAdd to {module}:\n    def predict_step(self, batch,"
            " batch_idx):\n        return self(batch[0])"
        )
    return None


_LIGHTNING = re.compile(r"/(?:pytorch_lightning|lightning)/")


def find_first_error(error: BaseException) -> BaseException:
    """Return the error that has ended the loops.

    Lightning's own teardown may raise another one after it.

    Lightning 2.6.6 tears a data fetcher down by asking for the length of loaders that may never
    have begun ("Please call `iter(combined_loader)` first"), and that error takes the place of the
    one that was under way.
    """
    while (first := error.__context__) is not None and error.__cause__ is None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _LIGHTNING.search(frame.filename)]
        if not any(frame.name in ("teardown", "_teardown") for frame in own):
            break
        error = first
    return error


def explain_process_limit(error: BaseException) -> LightkitError | None:
    """Return the error in the user's words where no process or thread could be started.

    None for any other.
    """
    is_fork = isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN
    is_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if not (is_fork or is_thread):
        return None
    text = " ".join(str(error).split())
    return LightkitError(
        f"no more processes or threads can be started ({text}): a limit of this user (`ulimit -u`)"
        " or of the container or job (pids) is reached, which counts threads too. Raise it, lower"
        " data.init_args.num_workers, or set OMP_NUM_THREADS=1; then run the same command again."
    )


_MISSING_METRIC = re.compile(
    r"conditioned on metric [`']?([^\s`']+)|ModelCheckpoint\(monitor='([^']*)'\)"
)
"""Of a metric that is monitored and not logged; the messages go on with those that are, which
others may monitor."""


def locate_lightning_error(error: Exception, resolved: Resolved) -> ConfigError:
    """Name the user's key that Lightning's message is about.

    Found by its name, its value, or best both.
    """
    if missing := _MISSING_METRIC.search(str(error)):
        of_schedule = "ReduceLROnPlateau" in str(error)
        return _locate_monitor(
            error, resolved, metric=missing[1] or missing[2], of_schedule=of_schedule
        )
    words = {word.rstrip(".") for word in re.findall(r"[\w/.+-]+", str(error))}
    best: tuple[int, KeyPath, Origin | None] = (0, (), None)
    for path, node in walk(resolved.tree):
        is_set = (
            len(path) > 1
            and path[0] in _SECTIONS
            and isinstance(node, Leaf)
            and node.origin.kind != "default"
        )
        value = getattr(node, "value", None)
        by_value = isinstance(value, str) and len(value) > 2 and value in words
        score = is_set * (by_value + (bool(path) and path[-1] in words))
        if score > best[0]:
            best = (score, path, node.origin)
    _, path, origin = best
    text = " ".join(resolved.masked(str(error)).split())
    return error_at(f"{dotted(path)}: {text}", origin) if path else ConfigError(text)


def _locate_monitor(
    error: Exception, resolved: Resolved, *, metric: str, of_schedule: bool
) -> ConfigError:
    """Name the key `monitor` that asks for a metric which is not logged.

    None where a module's code asks for it.
    """
    text = " ".join(resolved.masked(str(error)).split())
    for path, node in walk(resolved.tree):
        is_monitor = path[-1:] == ("monitor",) and isinstance(node, Leaf) and node.value == metric
        if is_monitor and (path[0] == "lr_scheduler") == of_schedule:
            return error_at(f"{dotted(path)}: {text}", node.origin)
    return ConfigError(text)
