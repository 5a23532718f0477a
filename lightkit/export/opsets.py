"""Which versions of ONNX's operators can be written and read."""

from __future__ import annotations

from lightkit.errors import ConfigError

__all__ = ["DEFAULT_OPSET", "OPSETS", "check_opset"]

# torch's exporter writes 18 and converts that to others (2.15 downwards as well, where an operator allows it); those
# from 24 on are too new for some of the onnxruntime releases that the extra allows, 1.31 reads up to 26.
OPSETS = range(18, 24)
"""Those that are tested: written by torch's exporter and read by onnxruntime."""
DEFAULT_OPSET = 20


def check_opset(opset: int | None) -> None:
    """Refuse an opset outside `OPSETS`.

    Raises:
        ConfigError: With those that there are.
    """
    if opset is not None and opset not in OPSETS:
        raise ConfigError(
            f"--opset: expected {OPSETS.start} to {OPSETS.stop - 1}, which torch writes and onnxruntime reads, "
            f"got {opset}."
        )
