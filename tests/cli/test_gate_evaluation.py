"""In which precision a gate scores, and whether it takes the scores of a retrain's test."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.cli.notifications import IN_RETRAIN
from lightkit.hardware import processor
from tests.cli.conftest import House, read_json

DESCRIBED = '''
class Described(Points):
    """Points with a fingerprint."""

    def describe(self):
        return {"fingerprint": "points", "source": "points"}
'''
GATE = (
    "gate",
    "latest",
    "--gate.metric=test/loss",
    "--gate.mode=min",
    "--gate.max=99",
    "--gate.baseline=null",
)


@pytest.fixture
def with_bf16(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose CPU has fast instructions for bf16, as far as `auto` and a gate can tell."""
    monkeypatch.setattr(processor, "instruction_sets", lambda: ("avx2", "avx512_bf16"))
    monkeypatch.setattr(processor, "cpu_vendor", lambda: "AuthenticAMD")
    return monkeypatch


def judge(
    house: House, monkeypatch: pytest.MonkeyPatch, *, is_tested: bool
) -> tuple[dict[str, Any], str]:
    """Run the gate as a retrain does after its test, or alone.

    Return its decision and what it printed.
    """
    if is_tested:
        monkeypatch.setenv(IN_RETRAIN, "tested")
    else:
        monkeypatch.delenv(IN_RETRAIN, raising=False)
    ended = house(*GATE)
    assert ended.code == 0, ended.err
    return read_json(house.runs[-1] / "gate.json"), ended.out


def test_a_gate_takes_the_scores_of_a_test_in_bf16_on_such_a_machine_alone(
    house: House, with_bf16: pytest.MonkeyPatch
) -> None:
    house.write(
        "my_models.py", (house.folder / "my_models.py").read_text(encoding="utf-8") + DESCRIBED
    )
    run = house.fit(
        "-c", "small.yaml", "--data=my_models.Described", "--accelerator.precision=auto"
    )
    assert house("test", "--run", "latest").code == 0
    tested = read_json(run / "summary.json")["scores"][-1]
    assert (tested["precision"], tested["device"]) == ("bf16-mixed", "cpu with bf16")

    # what is taken is what the gate would compute
    taken, printed = judge(house, with_bf16, is_tested=True)
    assert "those of its test" in printed
    computed, printed = judge(house, with_bf16, is_tested=False)
    assert "those of its test" not in printed
    assert taken["precision"] == computed["precision"] == "bf16-mixed"
    assert taken["scores"]["challenger"] == computed["scores"]["challenger"] == tested["metrics"]

    # a machine without the instructions computes in float32, and anew
    with_bf16.setattr(processor, "instruction_sets", lambda: ("avx2",))
    other, printed = judge(house, with_bf16, is_tested=True)
    assert "those of its test" not in printed
    assert other["precision"] == "32-true"
    assert other["scores"]["challenger"]["test/loss"] != tested["metrics"]["test/loss"]
    assert other["scores"]["challenger"]["test/loss"] == pytest.approx(
        tested["metrics"]["test/loss"], rel=0.02
    )


def test_a_gate_takes_the_scores_of_a_test_in_float32(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.write(
        "my_models.py", (house.folder / "my_models.py").read_text(encoding="utf-8") + DESCRIBED
    )
    run = house.fit("-c", "small.yaml", "--data=my_models.Described")
    assert house("test", "--run", "latest").code == 0
    tested = read_json(run / "summary.json")["scores"][-1]
    taken, printed = judge(house, monkeypatch, is_tested=True)
    assert "those of its test" in printed
    assert taken["precision"] == tested["precision"] == "32-true"
    assert taken["scores"]["challenger"] == tested["metrics"]
