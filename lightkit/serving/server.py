"""The server: LitServe with one model, from its start to its orderly end.

Annotations are no strings in this file: LitServe reads those of ``decode_request`` and
``encode_response``.
"""

import logging
import multiprocessing
import os
import signal
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Annotated, Any

import litserve
from fastapi import Depends, Response
from fastapi.responses import JSONResponse
from litserve.loops import BatchedLoop

from lightkit.errors import ConfigError, DataError
from lightkit.export.metadata import Metadata, read_metadata
from lightkit.serving.predictor import Predictor, Refusal, find_row_length
from lightkit.serving.requests import Item, RequestRules, read_items

_BATCH_WAIT_S = 0.002
_IDLE_WAIT_S = 1.0
_TIMEOUT_S = 60
_log = logging.getLogger("lightkit")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server.

    Args:
        host: Address that it listens at.
        port: Port that it listens at.
        max_batch_size: Requests that are predicted at once.
        max_bytes: Size of a request's body.
        top_k: Classes of an answer; all if None.
        workers: Processes that predict.
        threads: Of each of them; the runtime's default if None.
    """

    host: str
    port: int
    max_batch_size: int
    max_bytes: int
    top_k: int | None = None
    workers: int = 1
    threads: int | None = None


class PatientLoop(BatchedLoop):  # type: ignore[misc]  # as below
    """Wait for the first request of a batch, and only then for those that come shortly after it.

    LitServe 0.2 asks its queue, which is in another process, each millisecond whether there is a
    request: a server without any takes a good part of a core.
    """

    def get_batch_requests(
        self, lit_api: Any, request_queue: Any, transport: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return the requests of a batch, and those that have waited too long.

        None of both after a second.
        """
        try:
            first = request_queue.get(timeout=_IDLE_WAIT_S)
        except Empty:
            return [], []
        found: tuple[list[Any], list[Any]] = super().get_batch_requests(
            lit_api, _QueueWithFirst(first, request_queue), transport
        )
        return found


class _QueueWithFirst:
    """A queue whose first item was taken out already.

    Args:
        first: That item.
        queue: The queue of the others.
    """

    def __init__(self, first: Any, queue: "Queue[Any]") -> None:
        self._taken = [first]
        self._queue = queue

    def get(self, timeout: float) -> Any:
        """Return the next item, at the latest after so many seconds."""
        return self._taken.pop() if self._taken else self._queue.get(timeout=timeout)


class ModelAPI(litserve.LitAPI):  # type: ignore[misc]  # LitServe 0.2 has no types
    """The model of one exported file, as LitServe calls it.

    In a process of its own, with batches of requests.

    Args:
        file: The exported file.
        settings: Of the server.
    """

    def __init__(self, file: Path, settings: ServerSettings) -> None:
        super().__init__(
            max_batch_size=settings.max_batch_size, batch_timeout=_BATCH_WAIT_S, loop=PatientLoop()
        )
        self._file = file
        self._settings = settings
        self._predictor: Predictor | None = None

    @property
    def predictor(self) -> Predictor:
        """The model, which `setup` has loaded."""
        assert self._predictor is not None
        return self._predictor

    def setup(self, device: str) -> None:
        """Load the model in the process that predicts."""
        self._predictor = Predictor(
            self._file,
            read_metadata(self._file),
            top_k=self._settings.top_k,
            threads=self._settings.threads,
        )

    def decode_request(self, request: Annotated[list[Item], Depends(read_items)]) -> Any:
        """Turn a request into the model's inputs.

        A picture that cannot be decoded must not fail its whole batch.
        """
        return [item.name for item in request], self.predictor.decode(request)

    def batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Leave the requests apart: their pictures may differ in size."""
        return inputs

    def predict(self, x: Sequence[tuple[list[str], Any]]) -> list[tuple[list[str], Any]]:
        """Predict the samples of all requests of a batch."""
        answers = self.predictor.predict([request for _, request in x])
        return [(names, answer) for (names, _), answer in zip(x, answers, strict=True)]

    def unbatch(self, output: Sequence[Any]) -> Sequence[Any]:
        """Leave the answers apart."""
        return output

    def encode_response(self, output: tuple[list[str], Any]) -> Response:
        """Write an answer as JSON."""
        names, answer = output
        if isinstance(answer, Refusal):
            return JSONResponse({"detail": answer.reason}, status_code=answer.status)
        try:
            described = [
                self.predictor.describe(name, values)
                for name, values in zip(names, answer, strict=True)
            ]
        except DataError as error:
            return JSONResponse({"detail": str(error)}, status_code=500)
        return JSONResponse({"predictions": described})


def check_address(host: str, port: int) -> None:
    """Check that the server can listen at an address.

    Raises:
        ConfigError: If it cannot, as where another process does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(
                f"--port {port}: nothing can listen at port {port} of {host} ({error.strerror}), as"
                " where another process does. Choose another port with --port."
            ) from error


def serve_model(file: Path, metadata: Metadata, settings: ServerSettings) -> None:
    """Serve an exported model until a signal comes.

    Args:
        file: The exported file, which was checked.
        metadata: Of the file.
        settings: Of the server.

    Raises:
        ConfigError: If the address is taken.
    """
    check_address(settings.host, settings.port)
    row_length = find_row_length(metadata, file)
    preprocessing = metadata.row_preprocessing
    columns = None if preprocessing is None else tuple(preprocessing.columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with --max-batch-size 1: that requests could be batched
        api = ModelAPI(file, settings)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=settings.workers,
        timeout=_TIMEOUT_S,
        max_payload_size=settings.max_bytes,
        model_metadata={
            "model": metadata.model,
            "class_names": metadata.class_names and list(metadata.class_names),
            "takes": _describe_samples(row_length, columns),
            "source": dict(metadata.source),
        },
        disable_openapi_url=True,  # its pages load scripts from a network
    )
    server.app.state.rules = RequestRules(settings.max_bytes, row_length, columns)
    with _leave_no_process(), _signals_as_keyboard_interrupt(), warnings.catch_warnings():
        # of forks beside threads: uvicorn's processes are LitServe's choice
        warnings.simplefilter("ignore")
        server.run(
            host=settings.host,
            port=settings.port,
            num_api_servers=1,
            log_level="warning",
            generate_client_file=False,
        )


def _describe_samples(row_length: int | None, columns: Sequence[str] | None) -> str:
    if columns is not None:
        return f"rows with the columns {', '.join(columns)}"
    return "pictures" if row_length is None else f"rows of {row_length} numbers"


@contextmanager
def _signals_as_keyboard_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for each signal that asks for the end, and leave the block with it.

    LitServe 0.2 ends in an orderly way for that exception alone: it then leaves its manager's
    connection alone, in which the interrupted wait has an answer outstanding.
    """
    server = os.getpid()

    def interrupt(signum: int, _frame: object) -> None:
        # a process of uvicorn's, which has ended its requests and repeats the signal
        if os.getpid() != server:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
            return
        # it ends already; a second wish is the clock's of the command
        signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {}
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            before[each] = signal.signal(each, interrupt)
    try:
        yield
    except KeyboardInterrupt:  # while it starts
        pass
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _leave_no_process() -> Iterator[None]:
    """End the processes that LitServe leaves where a signal comes before it serves."""
    try:
        yield
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
            process.join(5)
            if process.is_alive():
                process.kill()
