"""A model to proved files under their final names: written aside, proved in a fresh process, then renamed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from lightkit.artefacts.metadata import FILES, Metadata
from lightkit.errors import ExportError, LightkitError
from lightkit.export import writing
from lightkit.export.latency import eager_latency, num_threads
from lightkit.export.parity import Tolerance
from lightkit.export.process import lay_inputs
from lightkit.export.proof import Mismatch, Proof, prove
from lightkit.export.publishing import aside, held, publish, withdraw
from lightkit.export.record import Artefact, Report, add_entry, drop_entry
from lightkit.export.reference import Reference
from lightkit.export.scoring import Scorer
from lightkit.export.subject import Samples, Subject, WriteOptions

__all__ = ["ExportsFailed", "export", "file_names"]

_PLAIN = WriteOptions()
_FULL = "no space is left on the disk of {}. Make room"
_REFUSALS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "the file is larger than files in {} may be. Look at `ulimit -f`",
    errno.EROFS: "{} has become read-only. Make it writable",
    errno.EACCES: "{} must not be written any more. Change its permissions",
    errno.EIO: "the disk of {} fails. Look at its health",
}
"""By errno: what was found, and what to do."""


class ExportsFailed(ExportError):
    """Some of the files could not be made, or were no match.

    Args:
        says: Why, a line for each.
        report: The others, which were published.
    """

    def __init__(self, says: str, *, report: Report | None = None) -> None:
        super().__init__(says)
        self.report = report


def export(
    subject: Subject,
    kinds: Sequence[str],
    folder: Path,
    samples: Samples,
    *,
    options: WriteOptions | None = None,
    tolerance: Tolerance | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Export a model to one or several formats, each of which is proved before it gets its name.

    A file of an earlier export stays until the new one is proved. Where the new one is no match, the earlier one goes
    too: whoever takes the folder for this model's must not find another's. One format that fails does not stop the
    others; all that failed are told together.

    Args:
        subject: What is exported.
        kinds: Formats, of `FILES`.
        folder: Where the files and export.json go; it is made.
        samples: What they are proved on.
        options: How they are written. ``half`` and ``int8`` add ``model.half.onnx`` and ``model.int8.onnx``.
        tolerance: Of the comparison; that of each file's precision if None.
        on_step: Gets a line at each step.

    Raises:
        ExportsFailed: If a file could not be made or is no match; the report of the others is with it.
        ConfigError: If the folder cannot be written, or there is nothing to calibrate int8 on.
        RunLocked: If another export is at work in it.
    """
    if "onnx" in kinds and options is not None and options.int8:
        writing.check_calibration(options)
    with held(folder), aside(folder / "samples") as place:
        work = _Work(subject, samples, place, tolerance, on_step)
        made = [work.try_to_make(folder / name, kind, way) for name, kind, way in _variants(kinds, options or _PLAIN)]
    report = Report(folder, [artefact for artefact in made if isinstance(artefact, Artefact)])
    failures = [str(error) for error in made if isinstance(error, LightkitError)]
    if failures:
        raise ExportsFailed("\nerror: ".join(failures), report=report)
    return report


def file_names(kinds: Sequence[str], options: WriteOptions) -> list[str]:
    """Give the names of the files that an export makes."""
    return [name for name, _, _ in _variants(kinds, options)]


def _variants(kinds: Sequence[str], options: WriteOptions) -> Iterator[tuple[str, str, WriteOptions]]:
    """File name, format and options of each file."""
    for kind in dict.fromkeys(kinds):
        plain = Path(FILES[kind])
        yield plain.name, kind, replace(options, half=False, int8=False)
        if kind == "onnx" and options.half:
            yield f"{plain.stem}.half{plain.suffix}", kind, replace(options, int8=False)
        if kind == "onnx" and options.int8:
            yield f"{plain.stem}.int8{plain.suffix}", kind, replace(options, half=False)


class _Grounds:
    """What files of one kind of input are proved against; made once, for all of them."""

    def __init__(self, reference: Reference, inputs: Path, threads: int) -> None:
        self.reference = reference
        self.inputs = inputs
        lay_inputs(reference.batches, inputs)
        self.latency: Mapping[int, Mapping[str, float]] = eager_latency(reference, threads=threads)

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.reference)


class _Work:
    def __init__(
        self,
        subject: Subject,
        samples: Samples,
        place: Path,
        tolerance: Tolerance | None,
        on_step: Callable[[str], None],
    ) -> None:
        self._subject, self._samples, self._place = subject, samples, place
        self._tolerance, self._on_step = tolerance, on_step
        self._threads = num_threads()
        self._grounds: dict[bool, _Grounds] = {}

    def try_to_make(self, path: Path, kind: str, options: WriteOptions) -> Artefact | LightkitError:
        """Make one file, or give the reason why there is none."""
        try:
            return self.make(path, kind, options)
        except LightkitError as error:  # of the data too, which the calibration reads
            self._on_step(f"{path.name}: failed")
            return error

    def make(self, path: Path, kind: str, options: WriteOptions) -> Artefact:
        """Write, prove and publish one file."""
        with _told(path), aside(path) as place:
            file = place / "file" / path.name
            file.parent.mkdir()
            self._on_step(f"{path.name}: writing")
            metadata = writing.write(kind, self._subject, file, options)
            grounds = self._grounds_of(metadata)
            self._on_step(f"{path.name}: proving on {grounds.reference.num} samples")
            try:
                proof = self._prove(file, metadata, grounds, place / "process")
            except Mismatch as error:
                raise Mismatch(f"{error} {_removed(path)} {error.advice}".rstrip()) from error
            drop_entry(path.parent, path.name)
            publish(file, path)
            artefact = Artefact(path, metadata, proof, grounds.latency, self._threads)
            _record(artefact)
        self._on_step(f"{path.name}: proved")
        return artefact

    def _prove(self, file: Path, metadata: Metadata, grounds: _Grounds, folder: Path) -> Proof:
        folder.mkdir()
        return prove(
            file,
            metadata,
            grounds.reference,
            scorer=grounds.scorer,
            inputs=grounds.inputs,
            folder=folder,
            threads=self._threads,
            tolerance=self._tolerance,
        )

    def _grounds_of(self, metadata: Metadata) -> _Grounds:
        """By what the file takes: a file of weights alone takes no images."""
        key = metadata.in_graph
        if key not in self._grounds:
            self._on_step("eager model: running and timing it")
            reference = Reference(self._subject, self._samples, in_graph=key)
            self._grounds[key] = _Grounds(reference, self._place / ("images" if key else "inputs"), self._threads)
        return self._grounds[key]


def _record(artefact: Artefact) -> None:
    """Put the file into export.json; one that is not in there counts as not proved, and goes."""
    try:
        add_entry(artefact.path.parent, artefact)
    except OSError:
        withdraw(artefact.path)
        raise


def _removed(path: Path) -> str:
    drop_entry(path.parent, path.name)
    also = ", and so was the one of an earlier export" if withdraw(path) else ""
    return f"It was removed{also}."


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A disk that is full or refuses a file as an error in words."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise ExportError(
            f"{path.name}: {_REFUSALS[error.errno].format(path.parent)}, or choose another --output."
        ) from error
