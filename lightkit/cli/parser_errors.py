"""Errors of jsonargparse and Lightning with the key that they are about, and its place.

No torch.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from lightkit import runs
from lightkit.cli.console import BROADCAST_LOSS
from lightkit.config import SECTIONS, KeyPath, Resolved, dotted, error_at, near
from lightkit.config.resolved import FollowUpError, find_named_class, original_path
from lightkit.config.tree import Leaf, descend, to_plain, walk
from lightkit.errors import ConfigError, LightkitError, exception_chain

_MISSING = re.compile(r"the following arguments are required: (.+)")
_UNKNOWN_KEY = re.compile(r"does not accept option '([^']+)'|Key '([\w.+-]+)' is not expected")
_NO_CLASS = re.compile(r"Option '([^']+)' is not accepted")
"""Of jsonargparse 4.53: arguments of a class that nothing names."""
_SEVERAL_CLASSES = re.compile(r"Multiple subclasses with name (\w+)\.")
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
    match = _NO_CLASS.match(line)
    if match and path:
        path, line = _explain_argument(path, match[1], resolved)
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
            path = _find_class(match[1].rpartition(".")[2], resolved) or path
        elif line and not line.startswith(_AROUND):
            break
    if match := _SEVERAL_CLASSES.match(line):  # of a named entry, whose list has another place
        path = _find_class(match[1], resolved, is_whole=True) or path
    return path, line


def _explain_argument(path: KeyPath, argument: str, resolved: Resolved) -> tuple[KeyPath, str]:
    """Explain why an argument is not taken at a place of a class.

    Returns:
        The path that the error is about, and the reason.
    """
    place = (*path, "init_args", argument)
    if argument.endswith("+"):
        return place, "nothing can be appended to it, which is no list; set it as a whole"
    if dotted(path) in _EXAMPLES:
        return path, _explain_missing_class(dotted(path), argument, resolved)
    return place, _explain_function_argument(path, resolved)


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


def _explain_function_argument(path: KeyPath, resolved: Resolved) -> str:
    """Explain that a function in the place of a class does not have an argument that is set.

    The signature of a class is checked before; of a function jsonargparse alone knows it.
    """
    _, node, _ = descend(resolved.tree, path)
    named = find_named_class(to_plain(node)) or "the function"
    return (
        f"{named} has no such argument; if its **kwargs take it, write it under dict_kwargs,"
        " next to class_path"
    )


def _find_class(name: str, resolved: Resolved, *, is_whole: bool = False) -> KeyPath:
    """Return the path of the first section or entry that names a class; empty where none does.

    Args:
        name: Name of the class without its module.
        resolved: The config.
        is_whole: Whether the config has it without the module, too.
    """
    for path, node in walk(resolved.tree):
        value = getattr(node, "value", None)
        if isinstance(value, str) and name == (value if is_whole else value.rpartition(".")[2]):
            return path[:-1] if path[-1] == "class_path" else path
    return ()


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


_LIGHTNING_SECTIONS = [name for name, section in SECTIONS.items() if section.owner == "lightning"]
_OTHER_STATES = {
    "Error(s) in loading state_dict": "model",  # torch
    "loaded state dict ": "optimizer",  # torch's optimizers, of their groups of parameters
}
_REFUSALS = (
    "Early stopping conditioned on metric",  # EarlyStopping of Lightning 2.6.6, a RuntimeError
    "Requirement '",  # lightning_utilities, of loggers whose package is not installed
)
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
    except (MisconfigurationException, *_EXPLAINED) as error:
        for explain in _EXPLANATIONS:
            reason = explain(error)
            if reason is not None:
                raise ConfigError(reason) from error
        is_refusal = isinstance(error, MisconfigurationException)
        if not is_refusal and not str(error).startswith(_REFUSALS):
            raise
        raise locate_lightning_error(error, resolved) from error


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


def explain_unreadable_checkpoint(error: Exception) -> str | None:
    """Explain why a strategy or a plugin that reads files by itself cannot read a checkpoint.

    None for any other error.
    """
    if not isinstance(error, pickle.UnpicklingError):
        return None
    names = runs.find_class_names(str(error))
    if names:
        return runs.refusal("the checkpoint", names)
    return f"the checkpoint cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"


def explain_broadcast_loss(error: Exception) -> str | None:
    """Explain a loss of outputs and targets whose shapes broadcast to pairs.

    None for anything but torch's warning of it, which is raised as an error.
    """
    found = re.match(BROADCAST_LOSS, str(error))
    if found is None or not isinstance(error, UserWarning):
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


_POSITIONAL_LOADER = re.compile(r"passed to its parent's `(\w+)=")
"""Of Lightning 2.6.6, which makes a loader again to predict, with arguments of its own by name."""


def explain_predict_loader(error: Exception) -> str | None:
    """Explain that there is no `predict_dataloader`, or that Lightning cannot use its loader.

    None for other errors.
    """
    text = str(error)
    if text.startswith("`predict_dataloader` must be implemented"):
        return (
            "data: there is no predict_dataloader, which gives the samples to predict. Add one to"
            " the data module, such as\n    def predict_dataloader(self):\n        return"
            " self.test_dataloader()"
        )
    if found := _POSITIONAL_LOADER.search(text):
        name = found[1]
        return (
            f"data: predict_dataloader gives its DataLoader {name} by position, where Lightning"
            f" cannot replace it by the {name} with which it predicts. Give it by name, as in"
            f" DataLoader(dataset, {name}=...)"
        )
    return None


_EXPLAINED = (
    RuntimeError,
    ImportError,
    ValueError,
    TypeError,
    AttributeError,
    UserWarning,
    pickle.UnpicklingError,
)
_EXPLANATIONS: tuple[Callable[[Exception], str | None], ...] = (
    explain_unreadable_checkpoint,
    explain_broadcast_loss,
    explain_port,
    explain_predict_step,
    explain_predict_loader,
    explain_other_weights,
)
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

    def count_named(found: tuple[KeyPath, Leaf]) -> int:
        """Count which of a key's name and its value the message has."""
        path, leaf = found
        by_value = isinstance(leaf.value, str) and len(leaf.value) > 2 and leaf.value in words
        return by_value + (path[-1] in words)

    best = max(_list_set_keys(resolved), key=count_named, default=None)
    text = " ".join(resolved.masked(str(error)).split())
    if best is None or not count_named(best):
        return ConfigError(text)
    path, leaf = best
    return error_at(f"{dotted(path)}: {text}", leaf.origin)


def _list_set_keys(resolved: Resolved) -> Iterator[tuple[KeyPath, Leaf]]:
    """List the keys of Lightning's sections that the user has set."""
    for path, node in walk(resolved.tree):
        is_of_section = len(path) > 1 and path[0] in _LIGHTNING_SECTIONS
        if is_of_section and isinstance(node, Leaf) and node.origin.kind != "default":
            yield path, node


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
