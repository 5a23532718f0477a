"""`lightkit predict --model FILE IMAGES`: labels by an exported model, without a run, a config or, for ONNX, torch."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from lightkit import runs
from lightkit.cli.config_loader import options_of, read_artefact_option
from lightkit.cli.console import OutputMode, choose_output_mode, configure_console
from lightkit.cli.targets import Targets, check_words, end_of, refuse_overwriting, targets_of
from lightkit.config import Arguments, split_arguments
from lightkit.errors import ConfigError, DataError
from lightkit.export.metadata import Metadata, check_digest, format_of, is_recorded, read_metadata
from lightkit.export.worker import Arrays, Runner, open_model
from lightkit.images.listing import Listing, listed
from lightkit.images.reading import pillow_warnings
from lightkit.prediction.inference import check_takes_images, class_names_of, num_values_of, predictions
from lightkit.prediction.progress import shown
from lightkit.prediction.sink import Sink
from lightkit.prediction.tables import STANDARD_OUTPUT

__all__ = ["predict_by_file", "takes_exported_file"]

_log = logging.getLogger("lightkit")


def takes_exported_file(command: str, words: Sequence[str]) -> bool:
    """Tell whether the words ask for predictions by a file that runs without the classes it was made of.

    Weights alone (`.safetensors`) do not: their module is built from a config.
    """
    if command != "predict" or {"-h", "--help"} & {*words}:
        return False
    files = [word.partition("=")[2] for word in read_artefact_option(words) if word.startswith("--artefact=")]
    return bool(files) and format_of(files[-1]) != "safetensors"


def predict_by_file(words: Sequence[str]) -> int:
    """Label the images that the words name, and return the exit code.

    Raises:
        ConfigError: If an option is wrong, the file's runtime is not installed, or the file needs ``--trust``.
        DataError: If the file is damaged or takes no images, what the words name is not there, or no image can be read.
    """
    arguments = split_arguments(read_artefact_option(words), options=options_of("predict"), takes_inputs=True)
    options = arguments.options
    _refuse_what_has_no_effect(arguments)
    check_words(options, arguments.inputs)
    targets = targets_of(options)
    refuse_overwriting(targets, options, arguments.inputs)
    listing = listed(arguments.inputs)
    is_json = options.get("output") == "json"
    mode = choose_output_mode({"output": "json"} if is_json else {"quiet": bool(options.get("quiet"))}, sys.stdout)
    configure_console(mode)
    file = _found(str(options["artefact"]), options.get("run"))
    metadata = read_metadata(file)
    check_digest(file)
    check_takes_images(metadata, str(file))
    if file.suffix.lower() == ".pt2":
        _check_trust(file, options.get("run"), is_trusted=bool(options.get("trust")))
    sink = _predicted(_opened(file), metadata, str(file), listing, targets, mode)
    says = end_of(sink, targets)
    if mode in ("terminal", "plain"):
        print(says, file=_people(targets), flush=True)
    elif mode == "json":
        print(_result(sink, targets))
    return 0


def _predicted(
    run: Runner, metadata: Metadata, name: str, listing: Listing, targets: Targets, mode: OutputMode
) -> Sink:
    sink = Sink(
        [targets.output],
        class_names=class_names_of(metadata.output_kind, metadata.class_names),
        num_values=num_values_of(metadata),
        top_k=targets.top_k,
        contact_sheet=targets.contact_sheet,
    )
    with pillow_warnings(), sink:
        found = predictions(run, metadata, listing, name=name)
        if mode in ("terminal", "plain"):
            stream = _people(targets)
            found = shown(found, listing.count(), stream=stream, is_terminal=stream.isatty())
        for prediction in found:
            sink.add(prediction)
        if not sink.num:  # all else that has no image is known before
            raise DataError("-: standard input has no paths")
    return sink


def _people(targets: Targets) -> TextIO:
    """Where people read, which is not where the table goes."""
    return sys.stderr if targets.output == STANDARD_OUTPUT else sys.stdout


def _refuse_what_has_no_effect(arguments: Arguments) -> None:
    said = [f"-c {file}" for file in arguments.files] + [flag.text for flag in arguments.flags]
    said += [f"--ckpt_path {arguments.options['ckpt_path']}"] if "ckpt_path" in arguments.options else []
    said += ["--print_config"] if "print_config" in arguments.options else []
    said += arguments.passthrough
    if said:
        raise ConfigError(
            f"{said[0]}: this has no effect on an exported model, which --model {arguments.options['artefact']} names. "
            "Leave one of the two out."
        )


def _found(word: str, run: Any) -> Path:
    """Find the file: where the word says, or else in the folder ``export`` of the run that ``--run`` names."""
    path = Path(word).expanduser()
    if path.is_file() or run is None:
        return path
    inside = runs.find(str(run), "runs").folder / "export" / word
    return inside if inside.is_file() else path


def _check_trust(file: Path, run: Any, *, is_trusted: bool) -> None:
    """Refuse a file of torch.export that no ``export.json`` records, unless ``--trust`` allows it.

    ``torch.export.load`` (torch 2.15) unpickles some of its records and evaluates others as Python, so that loading a
    file of unknown origin can run code.

    Args:
        file: The file.
        run: The run that ``--run`` names, whose exports count too; None for none.
        is_trusted: Whether ``--trust`` was given.

    Raises:
        ConfigError: If it is neither recorded nor trusted.
    """
    if is_recorded(file, file.parent) or (run and is_recorded(file, runs.find(str(run), "runs").folder / "export")):
        return
    if not is_trusted:
        raise ConfigError(
            f"{file}: its digest is in no export.json beside it, so lightkit may not have written it. Loading a .pt2 "
            "can run code, so it was not loaded. Name the run of its export with --run; or, if you know who made the "
            "file, --trust on the command line allows it."
        )
    _log.warning("--trust: %s is in no export.json beside it; loading it may run code", file)


def _opened(file: Path) -> Runner:
    try:
        run = open_model(file)
    except ValueError as error:  # its words begin with the path
        raise DataError(f"{error}. Export it again.") from error
    except ImportError as error:
        raise ConfigError(f"{file}: what runs it is not installed ({error}): pip install 'lightkit[onnx]'") from error
    return _told(file, run)


def _told(file: Path, run: Runner) -> Runner:
    """Give the model so that what its runtime raises is told in words."""

    def told(arrays: Arrays) -> Arrays:
        try:
            return run(arrays)
        except Exception as error:  # those of onnxruntime have no base of their own, and torch raises RuntimeError
            says = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise DataError(f"{file}: its model cannot be run on these images ({says}). Export it again.") from error

    return told


def _result(sink: Sink, targets: Targets) -> str:
    """Give the line that `--output json` prints: an event, as a run has them."""
    metrics = {"images": sink.num, "bad_images": sink.num_bad}
    record = {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "event": "result",
        "stage": "predict",
        "metrics": metrics,
        "table": str(targets.output),
        "contact_sheet": None if targets.contact_sheet is None else str(targets.contact_sheet),
    }
    return json.dumps(record)
