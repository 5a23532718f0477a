"""Trainings start from safetensors files as from those of torch.save."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lightkit.errors import ConfigError
from lightkit.export.metadata import DIGEST_KEY, NO_DIGEST, embed_digest
from lightkit.models.backbones import read_weights


@pytest.mark.parametrize("prefix", ["network.", ""], ids=["exported", "of-the-network"])
def test_the_network_is_read_with_and_without_its_prefix(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "x.safetensors"
    save_file({f"{prefix}0.weight": torch.eye(2)}, file)
    state = read_weights(str(file), backbone="small_cnn")
    assert list(state) == ["0.weight"]
    assert torch.equal(state["0.weight"], torch.eye(2))


@pytest.mark.parametrize("content", [b"", b"text", b"\x00" * 100], ids=["empty", "text", "zeros"])
def test_what_is_no_safetensors_file_is_reported_with_its_key(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.init_args\.weights: .*x\.safetensors"):
        read_weights(str(tmp_path / "x.safetensors"), backbone="small_cnn")


def test_weights_that_were_altered_since_their_export_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"0.weight": torch.eye(2)}, file, metadata={DIGEST_KEY: NO_DIGEST})
    embed_digest(file)
    assert list(read_weights(str(file), backbone="small_cnn")) == ["0.weight"]
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(
        ConfigError, match=r"model\.init_args\.weights: .*: this is not what was exported"
    ):
        read_weights(str(file), backbone="small_cnn")
