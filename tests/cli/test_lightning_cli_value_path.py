"""The path of one value, from a layer and a flag to the trainer: few functions, and few forms.

Each function is one that a reader of the code meets, and each form one that has to be kept in step
with the others. `trainer.max_epochs` stands in a layer, and a flag sets another value over it,
whose path is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TRACER = Path(__file__).with_name("value_path.py")
LAYER = """\
trainer: {max_epochs: 7301, accelerator: cpu, logger: false}
model: pytorch_lightning.demos.boring_classes.BoringModel
data: pytorch_lightning.demos.boring_classes.BoringDataModule
run: {report: false}
"""
MOST_FUNCTIONS = 52  # 15 of them for records of the run; 30 is the aim
MOST_FORMS = 5  # text, command line, tree with origins, plain values, Namespace


def test_a_value_reaches_the_trainer_through_few_functions_and_forms(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(LAYER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(TRACER), "job.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["reached"] == 7303
    functions = found["functions"]
    listing = "\n".join(f"{name}: {', '.join(forms)}" for name, forms in functions.items())
    forms = {form for held in functions.values() for form in held} - {"value"}  # the number itself
    print(f"{len(functions)} functions, {len(forms)} forms\n{listing}")
    assert len(functions) <= MOST_FUNCTIONS, listing
    assert len(forms) <= MOST_FORMS, forms
