"""`lightkit serve`: an exported model behind HTTP."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.config import shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, Interrupted, LightkitError
from lightkit.runs.checkpoints import known_digest
from lightkit.runs.scores import find_best_checkpoint

if TYPE_CHECKING:
    from lightkit.export.metadata import Metadata

_IN_REGISTRY = ("models:/", "runs:/")
_FILE = "model.onnx"
_LOWEST_PORT = 1024  # that LitServe takes
_HIGHEST_PORT = 65535
_SIZE = re.compile(r"(\d+)([kMG]?)")
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


class ExportFailedError(LightkitError):
    """The export before serving failed, and has said why.

    Args:
        message: For the end of the command.
        exit_code: Of the export.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def serve(invocation: Invocation) -> int:
    """Serve a model until a signal comes, and return the exit code.

    Raises:
        ConfigError: If an option is wrong, there is no such model, or the port is taken.
        DataError: If the file is damaged, is not what was exported, or takes neither pictures nor
            rows.
        ExportFailedError: If the run's model cannot be exported.
    """
    if importlib.util.find_spec("litserve") is None:
        raise ConfigError("serve: LitServe is not installed: pip install 'lightkit-train[serve]'.")
    # here: they load numpy and FastAPI
    from lightkit.serving.server import ServerSettings, check_address, serve_model

    settings = ServerSettings(
        host=invocation.get("host"),
        port=_read_port(invocation),
        max_batch_size=invocation.get("max-batch-size"),
        max_bytes=_read_size(invocation),
        top_k=invocation.get("top-k"),
        workers=invocation.get("workers"),
        threads=invocation.get("threads"),
    )
    check_address(settings.host, settings.port)
    try:
        with _find_file(invocation) as file:
            metadata = _read_proved(file)
            if not invocation.has("quiet"):
                _print_start(file, metadata, host=settings.host, port=settings.port)
            serve_model(file, metadata, settings)
    except Interrupted:  # the way in which a server ends
        pass
    if not invocation.has("quiet"):
        print("ended", flush=True)
    return 0


def _read_port(invocation: Invocation) -> int:
    port = int(invocation.get("port"))
    if not _LOWEST_PORT <= port <= _HIGHEST_PORT:
        raise invocation.error(f"--port: expected {_LOWEST_PORT} to {_HIGHEST_PORT}, got {port}")
    return port


def _read_size(invocation: Invocation) -> int:
    text = str(invocation.get("max-request"))
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise invocation.error(f"--max-request: expected a size such as 20M or 500k, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


@contextmanager
def _find_file(invocation: Invocation) -> Iterator[Path]:
    """Yield the file that the command line names.

    That of a run or a registered model is made where there is none.

    Raises:
        ConfigError: If none or two are named, or the file is of another format.
        ExportFailedError: If it cannot be made.
    """
    run = invocation.options.get("run")
    model = invocation.options.get("model")
    if (run is None) == (model is None):
        found = "both" if run else "neither"
        raise invocation.error(f"expected --run RUN or --model FILE, got {found}")
    reference = str(run or model)
    root = find_run_root(invocation.options.get("root"))
    if reference.startswith(_IN_REGISTRY):
        with tempfile.TemporaryDirectory(prefix="lightkit-serve-") as folder:
            _export(reference, "--output", folder, "--run.root", str(root))
            yield Path(folder) / _FILE
    elif run is not None:
        yield _find_export(runs.find(reference, root))
    else:
        yield _check_format(Path(reference).expanduser())


def _check_format(file: Path) -> Path:
    if file.suffix.lower() != ".onnx":
        raise ConfigError(
            f"--model {file}: the server runs ONNX files; expected a file that ends in .onnx, or"
            " models:/NAME@ALIAS. `lightkit export --run RUN --format onnx` writes one."
        )
    return file


def _find_export(run: runs.Run) -> Path:
    """Return the export of the run's best checkpoint, which is made where there is none."""
    from lightkit.export.metadata import read_record

    file = run.folder / "export" / _FILE
    best = known_digest(find_best_checkpoint(run, runs.read_json(run.summary_path) or {}))
    entry = read_record(file.parent).get(_FILE, {})
    of_checkpoint = (entry.get("source") or {}).get("sha256")
    if not file.is_file() or (best is not None and of_checkpoint != best):
        _export(str(run.folder))
    return file


def _export(reference: str, *words: str) -> None:
    """Export a model to ONNX in a process of its own, so that this one stays without torch.

    Raises:
        ExportFailedError: If it fails.
    """
    command = [
        sys.executable,
        "-m",
        "lightkit",
        "export",
        "--run",
        reference,
        "--format",
        "onnx",
        *words,
    ]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise ExportFailedError(
            f"serve: {reference} could not be exported to ONNX, see above.", code
        )


def _read_proved(file: Path) -> Metadata:
    from lightkit.export.metadata import check_digest, read_metadata

    metadata = read_metadata(file)
    check_digest(file)
    return metadata


def _print_start(file: Path, metadata: Metadata, *, host: str, port: int) -> None:
    from lightkit.serving.predictor import find_row_length

    length = find_row_length(metadata, file)
    preprocessing = metadata.row_preprocessing
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"model {metadata.model}, {shown_path(file)}")
    print(f"serve {address}/predict, {address}/health; Ctrl-C ends it")
    if preprocessing is not None:
        row = json.dumps(dict.fromkeys(preprocessing.columns), ensure_ascii=False)
        body = shlex.quote(f'{{"rows": [{row}]}}')
        print(
            f"next  curl -H 'Content-Type: application/json' -d {body} {address}/predict",
            flush=True,
        )
        return
    if length is None:
        print(f"next  curl -F image=@photo.jpg {address}/predict", flush=True)
        return
    row = ", ".join(["0"] * length) if length <= 8 else "..."
    body = f'{{"rows": [[{row}]]}}'
    print(
        f"next  curl -H 'Content-Type: application/json' -d '{body}' {address}/predict", flush=True
    )
