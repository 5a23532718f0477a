"""The `sweep` section: the plan that it results in, and what is said of wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import Flag, Problems, resolve
from lightkit.config.validation import check_sections
from lightkit.sweep.settings import Plan, Pruner, read_sweep

RATES = "space: {model.rate: {log: [0.001, 0.1]}}"


def read(folder: Path, section: str, **flags: str) -> tuple[Plan, list[str]]:
    """Read a section with flags on top; return the plan, and its errors."""
    file = folder / "job.yaml"
    file.write_text(f"sweep: {{{section}, {RATES}}}\n", encoding="utf-8")
    words = [Flag(f"sweep.{key}", text, f"--sweep.{key}={text}") for key, text in flags.items()]
    problems = Problems()
    resolved = check_sections(resolve([file], flags=words, environ={}), problems)
    plan = read_sweep(resolved, problems)
    return plan, [str(problem) for problem in problems]


def test_a_plan_has_the_values_of_the_section_and_of_flags(tmp_path: Path) -> None:
    section = (
        "metric: val/loss, mode: min, parallel: auto, sampler: random, seed: 3, max_failures: 2,"
        " pruner: {warmup_epochs: 4}, constraints: {params: {max: 5e6}, val/mae: null},"
        " confirm: {top: 2, seeds: 3}"
    )
    plan, errors = read(tmp_path, section, trials="12", **{"constraints.params.min": "10"})
    assert errors == []
    assert (plan.metric, plan.mode, plan.num_trials, plan.parallel) == (
        "val/loss",
        "min",
        12,
        "auto",
    )
    assert (plan.sampler, plan.seed, plan.max_failures) == ("random", 3, 2)
    assert plan.pruner == Pruner(kind="median", warmup_epochs=4)
    assert repr(plan.constraints) == "{'params': {'max': 5000000.0, 'min': 10.0}}"
    assert (plan.num_confirmed, plan.num_seeds) == (2, 3)


def test_a_section_that_says_little_has_the_documented_defaults(tmp_path: Path) -> None:
    plan, errors = read(tmp_path, "max_failures: null")
    assert errors == []
    assert (plan.num_trials, plan.parallel, plan.sampler, plan.max_failures) == (40, 1, "tpe", 5)
    assert (plan.pruner, plan.constraints, plan.num_confirmed, plan.seed) == (Pruner(), {}, 0, 0)


@pytest.mark.parametrize(
    ("section", "pruner"),
    [
        ("pruner: {warmup_epochs: null, min_epochs: null}", Pruner("median")),
        ("pruner: {kind: null}", Pruner("median")),
        ("constraints: {params: null}, confirm: null", Pruner()),
    ],
)
def test_a_null_anywhere_is_a_key_that_is_not_set(
    section: str, pruner: Pruner, tmp_path: Path
) -> None:
    plan, errors = read(tmp_path, section)
    assert errors == []
    assert (plan.pruner, plan.constraints, plan.num_confirmed) == (pruner, {}, 0)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("trails: 3", "sweep.trails: there is no such argument; did you mean 'trials'?"),
        ("metric: ''", "sweep.metric: expected a metric of the validation split, such as val/loss"),
        (
            "pruner: medain",
            "sweep.pruner: expected a mapping of kind, warmup_epochs and min_epochs,"
            " 'median', 'hyperband', 'none' or null, got 'medain'; did you mean 'median'?",
        ),
        (
            "pruner: {kind: medain}",
            "sweep.pruner.kind: expected 'median', 'hyperband' or 'none', got 'medain';"
            " did you mean 'median'?",
        ),
        (
            "pruner: {kind: hyperband, warmup_epochs: 3}",
            "sweep.pruner.warmup_epochs: is for the kind median only, and the kind is hyperband",
        ),
        (
            "pruner: {warmup: 3}",
            "sweep.pruner.warmup: there is no such argument; did you mean 'warmup_epochs'?",
        ),
        (
            "pruner: {kind: hyperband, min_epochs: 0}",
            "sweep.pruner.min_epochs: expected 1 or more, got 0",
        ),
        (
            "constraints: {params: {maxi: 3}}",
            "sweep.constraints.params.maxi: there is no such argument; did you mean 'max'?",
        ),
        (
            "constraints: {params: {max: .inf}}",
            "sweep.constraints.params.max: expected a finite number, got inf",
        ),
        (
            "constraints: {params: 3}",
            "sweep.constraints.params: expected a mapping of min and max or null, got 3",
        ),
        (
            "constraints: {params: {min: 3, max: 2}}",
            "sweep.constraints.params: expected bounds such as {max: 0.8}, got",
        ),
        ("confirm: {top: 2}", "sweep.confirm: needs seeds, an integer"),
        ("confirm: {top: 2, seeds: 1}", "sweep.confirm.seeds: expected 2 or more, got 1"),
    ],
    ids=[
        "key", "no metric", "word", "kind", "key of another kind", "key of a pruner", "no epochs",
        "key of bounds", "infinite bound", "no bounds", "bounds crosswise", "no seeds", "one seed",
    ],
)  # fmt: skip
def test_a_mistake_is_one_error_at_its_place(tmp_path: Path, section: str, says: str) -> None:
    _, errors = read(tmp_path, section)
    assert len(errors) == 1
    assert errors[0].startswith(says)
    assert "job.yaml:1:" in errors[0]
