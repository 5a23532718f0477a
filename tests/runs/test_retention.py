"""Which runs may be deleted, over trees of runs of all kinds, and how they go."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.runs.checkpoints import choose_good
from lightkit.runs.index import IndexedRun, index_runs
from lightkit.runs.retention import DeletionPlan, RetentionRules, delete_runs, plan_deletions
from tests.runs.trees import EPOCH, plant, run_id

NOW = EPOCH.timestamp() + 100 * 86400


def planned(root: Path, rules: RetentionRules, **also: Any) -> DeletionPlan:
    return plan_deletions(index_runs(root, metric=rules.metric), rules, now=NOW, **also)


def days_of(plan: DeletionPlan) -> list[str]:
    return [each.run.id for each in plan.deleted]


def collected(root: Path, rules: RetentionRules) -> list[Path]:
    return [each.run.folder for each in delete_runs(root, ["job"], planned(root, rules).deleted)]


def test_the_newest_and_the_best_are_kept_and_the_oldest_goes_first(tmp_path: Path) -> None:
    for day, value in enumerate([0.9, 0.3, 0.8, 0.2, 0.1]):
        plant(tmp_path, day=day, value=value)
    plan = planned(tmp_path, RetentionRules(keep_last=1, keep_best=2))
    assert days_of(plan) == [run_id(1), run_id(3)]
    assert sorted(plan.kept.values()) == [
        "one of the best",
        "one of the best",
        "the newest good one",
    ]


@pytest.mark.parametrize(
    ("monitor", "kept"), [("val/loss", 1), ("val/accuracy", 0)], ids=["loss", "accuracy"]
)
def test_the_mode_is_that_of_the_metric(monitor: str, kept: int, tmp_path: Path) -> None:
    for day, value in enumerate([0.9, 0.1, 0.5, 0.5]):
        plant(tmp_path, day=day, value=value, monitor=monitor)
    plan = planned(tmp_path, RetentionRules(keep_best=1))
    assert run_id(kept) not in days_of(plan)
    assert len(plan.deleted) == 2


def test_no_more_goes_than_the_size_asks_for(tmp_path: Path) -> None:
    for day in range(4):
        plant(tmp_path, day=day, size=100_000)
    assert days_of(planned(tmp_path, RetentionRules(max_size_bytes=250_000))) == [
        run_id(0),
        run_id(1),
    ]
    assert days_of(planned(tmp_path, RetentionRules(max_size_bytes=10**9))) == []
    assert days_of(planned(tmp_path, RetentionRules(max_size_bytes=0, keep_last=3))) == [run_id(0)]


def test_what_is_younger_than_asked_is_kept(tmp_path: Path) -> None:
    for day in (10, 80, 99):
        plant(tmp_path, day=day)
    assert days_of(planned(tmp_path, RetentionRules(older_than_s=30 * 86400))) == [run_id(10)]


def test_the_last_good_one_is_kept_behind_newer_ones_that_are_damaged(tmp_path: Path) -> None:
    plant(tmp_path, day=1)
    plant(tmp_path, day=2)
    plant(tmp_path, day=3, checkpoint="bad")
    plant(tmp_path, day=4, checkpoint=None)
    plan = planned(tmp_path, RetentionRules(keep_last=0))
    assert plan.kept == {f"job/{run_id(2)}": "the newest good one"}


def test_where_none_ended_well_the_newest_with_a_good_checkpoint_is_kept(tmp_path: Path) -> None:
    plant(tmp_path, day=1, status="failed")
    plant(tmp_path, day=2, status="interrupted")
    plant(tmp_path, day=3, status="done", checkpoint="bad")
    plant(tmp_path, day=4, status="done", checkpoint=None, value=None)
    plan = planned(tmp_path, RetentionRules(keep_last=1))
    assert days_of(plan) == [run_id(1), run_id(3)]
    assert plan.kept[f"job/{run_id(2)}"] == "the newest with a good checkpoint"


def test_the_best_are_those_with_a_good_checkpoint(tmp_path: Path) -> None:
    for day, value, checkpoint in [
        (1, 0.8, "good"),
        (2, 0.9, None),
        (3, 0.95, "bad"),
        (4, 0.1, "good"),
    ]:
        plant(tmp_path, day=day, value=value, checkpoint=checkpoint)
    plan = planned(tmp_path, RetentionRules(keep_best=1))
    assert days_of(plan) == [run_id(2), run_id(3)]
    assert plan.kept[f"job/{run_id(1)}"] == "one of the best"


def test_the_best_by_the_metric_of_before_are_kept_too(tmp_path: Path) -> None:
    for day, value, monitor in [
        (1, 0.2, "val/loss"),
        (2, 0.7, "val/loss"),
        (3, 0.9, "val/acc"),
        (4, 0.1, "val/acc"),
    ]:
        plant(tmp_path, day=day, value=value, monitor=monitor)
    assert days_of(planned(tmp_path, RetentionRules(keep_best=1))) == [run_id(2)]


@pytest.mark.parametrize(("mode", "kept"), [("min", 1), ("max", 2)])
def test_the_mode_is_the_one_that_the_checkpoint_was_chosen_by(
    mode: str, kept: int, tmp_path: Path
) -> None:
    for day, value in [(1, 0.1), (2, 0.9), (3, 0.5)]:
        plant(tmp_path, day=day, value=value, monitor="val/closeness", mode=mode)
    assert run_id(kept) not in days_of(planned(tmp_path, RetentionRules(keep_best=1)))


def test_nothing_is_planned_where_nobody_knows_what_is_best(tmp_path: Path) -> None:
    for day in (1, 2):
        plant(tmp_path, day=day, monitor="val/closeness")
    with pytest.raises(
        ConfigError, match=r"a small or a large val/closeness is good\. Set --mode min"
    ):
        planned(tmp_path, RetentionRules(keep_best=1))
    assert planned(tmp_path, RetentionRules(keep_best=2)).deleted == []
    assert days_of(planned(tmp_path, RetentionRules(keep_best=1, mode="max"))) == [run_id(1)]


def test_what_runs_of_another_job_began_from_is_kept(tmp_path: Path) -> None:
    base = plant(tmp_path, "base", day=1)
    plant(tmp_path, "base", day=2)
    plant(
        tmp_path,
        "fine",
        day=3,
        ckpt_path="base/" + base.name + "/last.ckpt",
        working_directory=str(tmp_path),
    )
    plant(tmp_path, "fine", day=4)
    plan = planned(tmp_path, RetentionRules(keep_last=1), name="base")
    assert plan.deleted == []
    assert plan.kept == {
        f"base/{run_id(2)}": "the newest good one",
        f"base/{run_id(1)}": f"fine/{run_id(3)} began from it",
    }
    assert plan.left_bytes == sum(each.size_bytes for each in index_runs(tmp_path, "base"))


def test_promoted_runs_and_those_that_a_kept_one_began_from_are_kept(tmp_path: Path) -> None:
    first = plant(tmp_path, day=1)
    second = plant(tmp_path, day=2, parent=first)
    plant(tmp_path, day=3, ckpt_path=str(second / "checkpoints" / "last.ckpt"))
    plant(tmp_path, day=4)
    plant(tmp_path, day=5)
    plan = planned(tmp_path, RetentionRules(keep_last=1), promoted={f"job/{run_id(3)}"})
    assert days_of(plan) == [run_id(4)]
    assert plan.kept[f"job/{run_id(3)}"] == "promoted"
    assert plan.kept[f"job/{run_id(1)}"] == f"job/{run_id(2)} began from it"


def test_what_the_next_start_goes_on_with_is_kept(tmp_path: Path) -> None:
    plant(tmp_path, day=1)
    plant(tmp_path, day=2, status="preempted")
    plant(tmp_path, day=3, status="running")
    plant(tmp_path, day=4, subcommand="test", status="failed")
    assert days_of(planned(tmp_path, RetentionRules(keep_last=0))) == [run_id(2), run_id(4)]
    unfinished = plant(tmp_path, "other", day=1)
    runs.write_json(unfinished / "retrain.json", {"ended": None})
    assert f"other/{run_id(1)}" in planned(tmp_path, RetentionRules(keep_last=0)).kept


def test_what_a_sweep_has_stopped_goes_first_and_is_none_of_the_newest(tmp_path: Path) -> None:
    for day, status in enumerate(["done", "done", "pruned", "pruned", "done"]):
        plant(tmp_path, day=day, status=status, size=100_000)
    assert days_of(planned(tmp_path, RetentionRules(keep_last=2))) == [
        run_id(2),
        run_id(3),
        run_id(0),
    ]
    assert days_of(planned(tmp_path, RetentionRules(max_size_bytes=450_000))) == [run_id(2)]
    alone = plant(tmp_path, "other", day=1, status="pruned")
    assert (
        f"other/{alone.name}" in planned(tmp_path, RetentionRules(keep_last=0), name="other").kept
    )


def test_a_link_to_a_run_stays(tmp_path: Path) -> None:
    plant(tmp_path, day=2)
    elsewhere = plant(tmp_path / "elsewhere", day=0)
    (tmp_path / "job" / run_id(0)).symlink_to(elsewhere, target_is_directory=True)
    assert collected(tmp_path, RetentionRules(keep_last=0)) == []
    assert elsewhere.is_dir()


def test_latest_points_to_what_is_left(tmp_path: Path) -> None:
    kept, gone = plant(tmp_path, day=1), plant(tmp_path, day=2, status="failed", subcommand="test")
    runs.point_latest(runs.open_run(gone))
    assert collected(tmp_path, RetentionRules(keep_last=0)) == [gone]
    assert (tmp_path / "job" / "latest").resolve() == kept
    assert sorted(
        path.name for path in (tmp_path / "job").iterdir() if path.name != "lock.json"
    ) == [kept.name, "latest"]


def test_what_another_gc_has_deleted_meanwhile_is_not_reported(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        plant(tmp_path, day=day)
    both = planned(tmp_path, RetentionRules(keep_last=1)).deleted
    assert [each.run.id for each in both] == [run_id(1), run_id(2)]
    shutil.rmtree(both[0].run.folder)
    assert delete_runs(tmp_path, ["job"], both) == both[1:]


def test_links_in_a_run_are_removed_and_not_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "gold").touch()
    gone = plant(tmp_path / "runs", day=1, status="failed", checkpoint=None)
    plant(tmp_path / "runs", day=2)
    (gone / "link").symlink_to(treasure, target_is_directory=True)
    assert len(collected(tmp_path / "runs", RetentionRules(keep_last=1))) == 1
    assert not gone.exists()
    assert (treasure / "gold").exists()


def test_what_a_kill_has_left_is_finished_by_the_next(tmp_path: Path) -> None:
    gone = plant(tmp_path, day=1, status="failed")
    kept = plant(tmp_path, day=2)
    gone.rename(gone.with_name(f".deleting-{gone.name}-0a1b2c3d"))
    assert len(index_runs(tmp_path)) == 1
    assert collected(tmp_path, RetentionRules(keep_last=1)) == []
    assert list((tmp_path / "job").iterdir()) == [kept]


KINDS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["one", "two"]),
        "status": st.sampled_from(
            ["done", "done", "failed", "preempted", "interrupted", "running", None]
        ),
        "value": st.one_of(st.none(), st.sampled_from([0.1, 0.5, 0.5, 0.9])),
        "size": st.integers(0, 3000),
        "checkpoint": st.sampled_from(["good", "good", "bad", None]),
        "subcommand": st.sampled_from(["fit", "fit", "fit", "test", None]),
        "parent": st.integers(-12, 11),
        "is_promoted": st.booleans(),
    }
)
RULES = st.builds(
    RetentionRules,
    keep_last=st.one_of(st.none(), st.integers(0, 3)),
    keep_best=st.one_of(st.none(), st.integers(0, 2)),
    max_size_bytes=st.one_of(st.none(), st.integers(0, 20_000)),
    older_than_s=st.one_of(st.none(), st.integers(90 * 86400, 100 * 86400)),
    mode=st.sampled_from([None, "min", "max"]),
).map(lambda rules: replace(rules, metric=rules.mode and "val/accuracy"))


@pytest.mark.slow
@settings(derandomize=True)
@given(kinds=st.lists(KINDS, max_size=12), rules=RULES, locked=st.integers(-12, 11))
def test_in_every_tree_what_must_stay_stays(
    kinds: list[dict[str, Any]], rules: RetentionRules, locked: int
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        check_tree(root, kinds, rules, locked)
    finally:
        shutil.rmtree(root)


def check_tree(root: Path, kinds: list[dict[str, Any]], rules: RetentionRules, locked: int) -> None:
    folders: list[Path] = []
    promoted = set()
    for day, kind in enumerate(kinds):
        said = {key: value for key, value in kind.items() if key not in ("parent", "is_promoted")}
        parent = folders[kind["parent"]] if 0 <= kind["parent"] < len(folders) else None
        folders.append(plant(root, day=day, parent=parent, **said))
        promoted |= {f"{kind['name']}/{folders[-1].name}"} if kind["is_promoted"] else set()
    holder = folders[locked] if 0 <= locked < len(folders) else None
    if holder is None:
        check_plan(root, rules, promoted, None)
        return
    with runs.Lock(root, holder.parent.name) as lock:
        lock.note_folder(holder)
        check_plan(root, rules, promoted, holder)


def check_plan(root: Path, rules: RetentionRules, promoted: set[str], holder: Path | None) -> None:
    listed = index_runs(root)
    good = {each.key for each in listed if is_good(each)}
    plan = plan_deletions(listed, rules, promoted=promoted, now=NOW)
    gone = {each.key for each in plan.deleted}
    kept = [each for each in listed if each.key not in gone]
    assert gone | plan.kept.keys() == {each.key for each in listed}
    assert not gone & plan.kept.keys()
    assert not gone & promoted
    assert holder is None or f"{holder.parent.name}/{holder.name}" not in gone
    assert plan.left_bytes == sum(each.size_bytes for each in kept)
    for name in {each.run.name for each in listed}:
        check_job([each for each in listed if each.run.name == name], gone, good, rules)
    began_from = {str(path) for each in kept for path in each.needs}
    assert not {str(each.run.folder) for each in plan.deleted} & began_from
    if rules.max_size_bytes is not None and plan.deleted:
        assert plan.left_bytes + plan.deleted[-1].size_bytes > rules.max_size_bytes
    assert delete_runs(root, {each.run.name for each in plan.deleted}, plan.deleted) == plan.deleted
    assert {each.key for each in index_runs(root)} == {each.key for each in kept}


def check_job(
    of_job: list[IndexedRun], gone: set[str], good: set[str], rules: RetentionRules
) -> None:
    keys = [each.key for each in of_job]
    assert not gone & set(keys[: rules.keep_last or 0])
    assert not good & set(keys) or good & (set(keys) - gone)  # never the only good one
    ended_well = {each.key for each in of_job if each.key in good and each.status == "done"}
    assert not ended_well or ended_well - gone
    resumed = next((each for each in of_job if each.is_training), None)
    assert resumed is None or resumed.status == "done" or resumed.key not in gone
    young = {
        each.key
        for each in of_job
        if rules.older_than_s and NOW - each.created < rules.older_than_s
    }
    assert not gone & young


def is_good(each: IndexedRun) -> bool:
    return each.is_training and choose_good(each.run.checkpoints)[0] is not None


@pytest.mark.parametrize("damage", ["cut", "lost"])
def test_what_a_run_may_have_begun_from_whose_manifest_cannot_be_read_is_kept(
    damage: str, tmp_path: Path
) -> None:
    plant(tmp_path, "base", day=1)
    plant(tmp_path, "base", day=2)
    unreadable = plant(tmp_path, day=3, parent=tmp_path / "base" / run_id(1))
    plant(tmp_path, "base", day=4)
    plant(tmp_path, "base", day=5)
    rules = RetentionRules(keep_last=1)
    assert days_of(planned(tmp_path, rules)) == [run_id(2), run_id(4)], "the first one is needed"
    manifest = unreadable / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    if damage == "lost":
        manifest.unlink()
    plan = planned(tmp_path, rules)
    assert days_of(plan) == [run_id(4)], "both that are older may be needed"
    said = f"job/{run_id(3)}, whose manifest.json cannot be read, may have begun from it"
    assert plan.kept[f"base/{run_id(2)}"] == said
    assert [each.run.folder for each in plan.unknown] == [unreadable]
    assert planned(tmp_path, rules, name="base").kept[f"base/{run_id(1)}"] == said


def test_a_folder_without_a_manifest_and_without_checkpoints_keeps_no_older_run(
    tmp_path: Path,
) -> None:
    plant(tmp_path, day=1)
    plant(tmp_path, day=2)
    plant(tmp_path, day=3, subcommand=None, status=None, checkpoint=None)
    assert days_of(planned(tmp_path, RetentionRules(keep_last=1))) == [run_id(1)]


@pytest.mark.parametrize("is_relative", [True, False], ids=["relative", "absolute"])
def test_a_run_whose_weights_a_kept_run_names_in_its_config_is_kept(
    is_relative: bool, tmp_path: Path
) -> None:
    base = plant(tmp_path, "base", day=1)
    plant(tmp_path, "base", day=2)
    plant(tmp_path, "base", day=3)
    tuned = plant(tmp_path, day=4, working_directory=str(tmp_path.parent))
    weights = base / "checkpoints" / "last.ckpt"
    named = weights.relative_to(tmp_path.parent) if is_relative else weights
    (tuned / "config.yaml").write_text(
        f"model: {{init_args: {{weights: {named}}}}}\n", encoding="utf-8"
    )
    plan = planned(tmp_path, RetentionRules(keep_last=1))
    assert days_of(plan) == [run_id(2)]
    assert plan.kept[f"base/{run_id(1)}"] == f"job/{run_id(4)} began from it"
