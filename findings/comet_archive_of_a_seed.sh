#!/usr/bin/env bash
# comet_ml 3.58.8: of offline stages of one experiment in processes with one seed, each replaces the archive of the one before.
#
# Guess: each offline process has an archive of its own, also where several continue one experiment (get_or_create), such as
# a fit and its test: the name has six random letters behind the key.
# Seen: the letters come from Python's global generator, which a training seeds. A fit and two tests with one seed draw the
# same letters, and one archive is left, that of the last test: the curves of the fit are gone, without a word. Without a
# seed there are three archives. lightkit draws the letters aside from the seed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet comet_ml==3.58.8

cat > "$folder/stage.py" <<'PYTHON'
import os
import random
import sys

os.environ["COMET_ERROR_TRACKING_ENABLE"] = "false"
import comet_ml

folder, seed, name = sys.argv[1:]
if seed != "none":
    random.seed(int(seed))
experiment = comet_ml.start(
    online=False,
    mode="get_or_create",
    experiment_key="a" * 40,
    project="p",
    experiment_config=comet_ml.ExperimentConfig(offline_directory=folder, auto_output_logging=False),
)
experiment.log_metric(name, 1.0, step=1)
experiment.end()
PYTHON
for seed in 7 none; do
    mkdir "$folder/$seed"
    for stage in fit_loss test_accuracy second_test; do
        "$folder/venv/bin/python" "$folder/stage.py" "$folder/$seed" "$seed" "$stage" > /dev/null 2>&1
    done
done

"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
import zipfile
from pathlib import Path

STAGES = ("fit_loss", "test_accuracy", "second_test")
found = {}
for seed in ("7", "none"):
    archives = sorted(Path(sys.argv[1], seed).glob("*.zip"))
    texts = []
    for archive in archives:
        with zipfile.ZipFile(archive) as content:
            texts.append(b"".join(content.read(name) for name in content.namelist()))
    left = [stage for stage in STAGES if any(stage.encode() in text for text in texts)]
    found[seed] = (len(archives), left)
    print(f"seed {seed}: {len(archives)} archives, with {', '.join(left)}")
print("names with the seed:", [path.name for path in sorted(Path(sys.argv[1], "7").glob("*.zip"))])
assert found["none"] == (3, list(STAGES)), found
assert found["7"] == (1, ["second_test"]), found
PYTHON
