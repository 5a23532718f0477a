from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from lightkit import runs
from lightkit.runs.fence import aside_of


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {"weight": torch.arange(1000.0)}}, path)
    return path


def test_a_whole_file_has_no_fault(whole: Path) -> None:
    assert runs.find_fault(whole) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"epoch: 3\n", b"\x89PNG\r\n\x1a\n", pickle.dumps({"a": 1}, protocol=0)],
    ids=["empty", "text", "picture", "old pickle"],
)
def test_another_kind_of_file_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    assert "expected an archive of torch.save" in str(runs.find_fault(tmp_path / "a.ckpt"))


def test_an_archive_of_torchscript_is_another(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as archive:
        for name in ("data.pkl", "constants.pkl"):
            archive.writestr(f"model/{name}", b"")
    assert "another archive, such as one of torch.export or TorchScript" in str(
        runs.find_fault(tmp_path / "a.ckpt")
    )


def test_a_file_that_is_cut_short_is_reported(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:3000])
    assert "its archive cannot be read" in str(runs.find_fault(whole))


def test_a_byte_that_has_changed_is_reported(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 0xFF
    whole.write_bytes(content)
    assert str(runs.find_fault(whole)).endswith("data/0 in its archive is damaged")


def test_a_digest_next_to_it_that_does_not_agree_is_reported(whole: Path) -> None:
    runs.sidecar(whole).write_text("0" * 64)
    assert runs.find_fault(whole) == "its digest differs from that in a.ckpt.sha256"


def plant_folder(path: Path, content: bytes) -> None:
    runs.make_way_for_folder(path)
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(content)
    (path / "meta.pt").write_bytes(content[::-1])
    runs.write_folder_digests(path)


def test_a_folder_of_shards_that_is_written_again_is_kept_as_the_one_before(tmp_path: Path) -> None:
    for content in (b"first", b"second", b"third"):
        plant_folder(tmp_path / "last.ckpt", content)
    assert (tmp_path / "last.ckpt" / "__0_0.distcp").read_bytes() == b"third"
    assert (tmp_path / "last-1.ckpt" / "__0_0.distcp").read_bytes() == b"second"
    assert runs.choose_good(tmp_path) == (tmp_path / "last.ckpt", [])
    runs.sidecar(tmp_path / "last.ckpt").unlink()  # killed while the shards are written
    assert runs.last_good(tmp_path) == tmp_path / "last-1.ckpt"
    plant_folder(tmp_path / "last.ckpt", b"fourth")
    assert (tmp_path / "last-1.ckpt" / "__0_0.distcp").read_bytes() == b"second", (
        "the broken one is not kept"
    )


def test_a_second_name_of_a_folder_of_shards_outlives_the_first(tmp_path: Path) -> None:
    last, best = tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    for content in (b"first", b"second"):
        plant_folder(last, content)
        runs.write_link(last, best)
    assert (best / "meta.pt").stat().st_ino == (last / "meta.pt").stat().st_ino
    plant_folder(last, b"third")
    assert runs.find_fault(best) is None
    assert (best / "__0_0.distcp").read_bytes() == b"second"
    digests = runs.sidecar(best).read_text(encoding="utf-8").splitlines()
    assert [line.partition("  ")[2] for line in digests] == [
        "best.ckpt/__0_0.distcp",
        "best.ckpt/meta.pt",
    ]


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_folder_of_shards_with_a_fault_is_passed_over_for_an_older_one(
    damage: str, tmp_path: Path
) -> None:
    plant_folder(tmp_path / "last.ckpt", b"first")
    plant_folder(tmp_path / "last.ckpt", b"second")
    shard = tmp_path / "last.ckpt" / "__0_0.distcp"
    shard.unlink()
    if damage == "cut":
        shard.write_bytes(b"sec")
    found, [(passed_over, fault)] = runs.choose_good(tmp_path)
    assert (found, passed_over) == (tmp_path / "last-1.ckpt", tmp_path / "last.ckpt")
    assert "last.ckpt/__0_0.distcp" in fault


def test_what_a_kill_leaves_of_the_second_name_of_a_folder_is_removed(tmp_path: Path) -> None:
    plant_folder(tmp_path / "last.ckpt", b"first")
    aside_of(tmp_path / "best.ckpt").mkdir()
    runs.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", "last.ckpt.sha256"}
