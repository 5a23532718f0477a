"""Keep the promises on checkpoints where a plugin of the user's writes them.

It writes in the place of lightkit's writer.
"""

from __future__ import annotations

import logging
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_fabric.plugins.io.xla import XLACheckpointIO
from pytorch_lightning.plugins import CheckpointIO
from pytorch_lightning.plugins.io import AsyncCheckpointIO

from lightkit import runs
from lightkit.callbacks.checkpoint_io import (
    VerifiedCheckpointIO,
    VerifiedXLACheckpointIO,
    make_loadable,
)
from lightkit.launch.watchdog import heartbeat

_log = logging.getLogger("lightkit")
Saved = tuple[Path, int, int]  # path, epoch and step


def build_checkpoint_io(
    plugin: CheckpointIO | None,
    *,
    on_xla: bool,
    mask: Callable[[Any], Any] | None = None,
    on_saved: Callable[[Path, int, int], None] | None = None,
    key: str = "trainer.plugins",
) -> CheckpointIO:
    """Build the writer of checkpoints: lightkit's own, or one around a plugin of the user's.

    Args:
        plugin: Of the config; None, or Lightning's default, is replaced by lightkit's writer.
        on_xla: Whether the strategy takes an `XLACheckpointIO` only.
        mask: As for `VerifiedCheckpointIO`.
        on_saved: As for `VerifiedCheckpointIO`; always called in the thread that trains.
        key: Where the plugin was set, for the warning.
    """
    if plugin is None or type(plugin) in (TorchCheckpointIO, XLACheckpointIO):
        kind = VerifiedXLACheckpointIO if on_xla else VerifiedCheckpointIO
        return kind(mask=mask, on_saved=on_saved)
    if isinstance(plugin, VerifiedCheckpointIO):
        return plugin
    around = PluginXLACheckpointIO if on_xla else PluginCheckpointIO
    return around(plugin, mask=mask, on_saved=on_saved, key=key)


class PluginCheckpointIO(CheckpointIO):
    """Hand a plugin of the user's each checkpoint without secrets, and digest what it has written.

    A plugin that wraps another writer, such as Lightning's `AsyncCheckpointIO`, and was given none,
    gets lightkit's: each checkpoint is read back, has its digest, and takes the place of the one
    before only then. Any other plugin writes the file itself.

    Args:
        plugin: The user's.
        mask: Applied to the hyper-parameters before the plugin has them.
        on_saved: Called with the path and the checkpoint's epoch and step once the file is in
            place.
        key: Where the plugin was set, for the warning.
    """

    _WRITER: type[VerifiedCheckpointIO] = VerifiedCheckpointIO

    def __init__(
        self,
        plugin: CheckpointIO,
        *,
        mask: Callable[[Any], Any] | None = None,
        on_saved: Callable[[Path, int, int], None] | None = None,
        key: str = "trainer.plugins",
    ) -> None:
        super().__init__()
        self.plugin = plugin
        self._mask = mask
        self._on_saved = on_saved
        self._lock = threading.Lock()
        self._written: list[Saved] = []  # by lightkit's writer, perhaps in a thread
        self._pending: dict[Path, Saved] = {}  # handed to the plugin, and not seen on the disk yet
        self._has_writer = self._give_writer()
        self._warn(key)

    def _give_writer(self) -> bool:
        """Set lightkit's writer in a plugin that wraps one.

        False where it has another, or wraps none.
        """
        writer = self._WRITER(on_saved=self._note_written, beats=False)
        if not isinstance(self.plugin, AsyncCheckpointIO) and not hasattr(
            self.plugin, "checkpoint_io"
        ):
            return False
        inner: Any = self.plugin
        inner.checkpoint_io = writer  # it goes to the innermost one that has none
        while inner is not None and inner is not writer:
            inner = getattr(inner, "checkpoint_io", None)
        return inner is writer

    def _warn(self, key: str) -> None:
        name = type(self.plugin).__name__
        if self._has_writer:
            _log.warning(
                "%s: %s hands checkpoints to lightkit's writer at a time of its own: what a"
                " checkpoint holds beside tensors may be of a later step, last.ckpt may be behind"
                " when a run is killed, and an error of the disk ends the training only at the next"
                " checkpoint. Secrets are masked, and each file has its digest.",
                key,
                name,
            )
            return
        _log.warning(
            "%s: %s writes the checkpoints in the place of lightkit's writer: a kill or a full disk"
            " while it writes may cost the checkpoint before, no file is read back, and there is no"
            " last-1.ckpt. Secrets are masked, and each file that it"
            " leaves under its name has a digest.",
            key,
            name,
        )

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Hand the plugin a checkpoint that has no secrets."""
        make_loadable(checkpoint, self._mask)
        file = Path(path)
        is_own_file = not self._has_writer and "://" not in str(path)
        before = _identify(file)
        if is_own_file:
            runs.sidecar(file).unlink(missing_ok=True)  # of the file that is being replaced

        self.plugin.save_checkpoint(checkpoint, path, storage_options=storage_options)

        if is_own_file:
            self._pending[file] = (file, checkpoint["epoch"], checkpoint["global_step"])
            if _identify(file) != before:  # else the plugin writes it later, in a thread
                self._digest(file)
        self._announce()
        heartbeat().leave()  # the phase of a checkpoint, which `StallWatch` has entered

    def _digest(self, file: Path) -> None:
        """Write the digest of a file that is whole.

        An archive that is being written has no end yet.
        """
        if file.is_file() and zipfile.is_zipfile(file):
            runs.write_digest(file)
            self._note_written(*self._pending.pop(file))

    def _note_written(self, path: Path, epoch: int, step: int) -> None:
        with self._lock:
            self._written.append((path, epoch, step))

    def _announce(self) -> None:
        """Announce what is on the disk by now.

        Here, since a thread of the plugin's must not touch the trainer.
        """
        with self._lock:
            written = self._written
            self._written = []
        for each in written:
            if self._on_saved is not None:
                self._on_saved(*each)

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint with the plugin, which may have a format of its own."""
        return self.plugin.load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint with the plugin, and its digest."""
        self.plugin.remove_checkpoint(path)
        self._pending.pop(Path(path), None)
        if "://" not in str(path):
            runs.sidecar(Path(path)).unlink(missing_ok=True)

    def teardown(self) -> None:
        """End the plugin's threads, then digest and announce the files that they have written."""
        try:
            self.plugin.teardown()
        finally:
            for file in tuple(self._pending):
                self._digest(file)
            self._pending.clear()
            self._announce()


class PluginXLACheckpointIO(PluginCheckpointIO, XLACheckpointIO):
    """The same for XLA devices, whose strategies take an `XLACheckpointIO` only."""

    _WRITER = VerifiedXLACheckpointIO


def _identify(file: Path) -> tuple[int, int, int] | None:
    """Return what changes with the content of a file; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
