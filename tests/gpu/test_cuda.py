"""A CUDA GPU: which one is taken, how it computes, and what a run on it leaves behind.

Run by `make test-gpu`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.workspace import (
    Workspace,
    assert_same_training,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
)
from tests.gpu.gpu_jobs import OCCUPY, PLAIN_LOOP

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch sees no CUDA GPU here; make test-gpu needs one"
    ),
]
Environ = Mapping[str, str | None]
GIB = 1 << 30


def fit(workspace: Workspace, environ: Environ, *words: str) -> Path:
    """Train `pictures.yaml` with `my_gpu.WriteComputation`."""
    look = "callbacks.look.class_path=my_gpu.WriteComputation"
    workspace.run_cold(
        "fit", "-c", "pictures.yaml", look, *words, environ=environ, timeout_s=280
    ).ok()
    return max(workspace.runs, key=lambda run: run.name)


def computation(workspace: Workspace) -> dict[str, Any]:
    """What `my_gpu.WriteComputation` saw."""
    content: dict[str, Any] = read_json(workspace.folder / "computation.json")
    return content


@pytest.mark.parametrize("gpus", ["1", "[0]", "-1"], ids=["one", "the_first", "all"])
def test_gpus_that_are_asked_for_are_trained_on(
    pictures: Workspace, visible_gpu: Environ, gpus: str
) -> None:
    run = fit(pictures, visible_gpu, f"accelerator.gpus={gpus}")
    assert computation(pictures)["device"] == "cuda:0"
    hardware = read_json(run / "manifest.json")["hardware"]
    assert (hardware["accelerator"], hardware["devices"]) == ("cuda", 1)


def test_more_gpus_than_there_are_are_refused_with_those_there_are(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    result = pictures.run_cold(
        "fit", "-c", "pictures.yaml", "accelerator.gpus=2", environ=visible_gpu
    )
    assert result.code == 2, result.err
    assert re.search(r"accelerator\.gpus: 2: this machine shows 1 GPU, 0: .*GiB", result.err)
    assert pictures.runs == []


def test_bf16_mixed_computes_in_bfloat16_and_keeps_float32_weights(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    fit(pictures, visible_gpu, "accelerator.gpus=1", "accelerator.precision=bf16-mixed")
    found = computation(pictures)
    assert (found["activations"], found["weights"]) == (["torch.bfloat16"], "torch.float32")


def test_tf32_is_used_where_it_is_asked_for(pictures: Workspace, visible_gpu: Environ) -> None:
    fit(pictures, visible_gpu, "accelerator.gpus=1", "accelerator.tf32=true")
    assert computation(pictures)["matmul"] == "high"


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_an_optimizer_is_fused_where_that_is_asked_for(
    pictures: Workspace, visible_gpu: Environ, optimizer: str
) -> None:
    words = (f"optimizer.class_path={optimizer}", "optimizer.init_args.lr=0.01")
    fit(pictures, visible_gpu, "accelerator.gpus=1", "accelerator.fused=true", *words)
    assert all(computation(pictures)["fused"])


def test_channels_last_is_the_layout_in_training_and_not_of_checkpoints(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    run = fit(
        pictures, visible_gpu, "accelerator.gpus=1", "accelerator.memory_format=channels_last"
    )
    assert computation(pictures)["channels_last"]
    weights = load_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"]
    assert all(weight.is_contiguous() for weight in weights.values())


@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="torch.compile needs a compiler",
)
def test_a_compiled_model_trains_and_keeps_its_names(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    plain = fit(pictures, visible_gpu, "accelerator.gpus=1", "run.name=plain")
    compiled = fit(
        pictures, visible_gpu, "accelerator.gpus=1", "accelerator.compile=true", "run.name=compiled"
    )
    assert computation(pictures)["compiled"]
    names = [
        [*load_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"]]
        for run in (plain, compiled)
    ]
    assert names[0] == names[1]
    losses = [float(read_metrics(run)[0]["train/loss"]) for run in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_with_deterministic_a_killed_run_ends_with_the_same_weights(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    """Bit for bit, on CUDA too."""
    sender = {"hook": "on_train_batch_start", "step": 8, "signum": int(signal.SIGKILL)}
    checkpoint = {"checkpoint": {"init_args": {"save_last_every_n_steps": 2}}}
    pictures.write("exact.yaml", {"callbacks": checkpoint, "trainer": {"deterministic": True}})
    pictures.write(
        "kill.yaml",
        {"callbacks": {"s": {"class_path": "my_project.SendSignal", "init_args": sender}}},
    )
    words = ("fit", "-c", "pictures.yaml", "-c", "exact.yaml", "accelerator.gpus=1")
    killed = pictures.run_cold(*words, "-c", "kill.yaml", "run.name=killed", environ=visible_gpu)
    assert killed.code == -signal.SIGKILL, killed.err
    pictures.run_cold(*words, "-c", "kill.yaml", "run.name=killed", environ=visible_gpu).ok()
    pictures.run_cold(*words, "run.name=whole", environ=visible_gpu).ok()
    runs = {path.parent.name: path for path in pictures.runs}
    assert len(read_events(runs["killed"], "resume")) == 1
    assert_same_training(runs["killed"], runs["whole"])


def test_a_batch_size_is_searched_in_the_memory_that_others_leave(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    pictures.write("occupy.py", OCCUPY)
    neighbour = pictures.start(str(2 * GIB), cold=True, script="occupy.py", environ=visible_gpu)
    neighbour.wait_for(lambda: "occupied" in neighbour.out)
    words = ("accelerator.gpus=1", "--batch-size", "data.init_args.image_size=224")
    result = pictures.run_cold(
        "tune", "-c", "pictures.yaml", *words, "--json", environ=visible_gpu, timeout_s=400
    ).ok()
    assert "batch_size" in result.out
    assert json.loads(result.out)
    assert neighbour.poll() is None, neighbour.err


def test_a_checkpoint_of_cuda_is_exported_without_a_gpu(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    run = fit(pictures, visible_gpu, "accelerator.gpus=1")
    pictures.run_cold("export", "--run", "latest", timeout_s=280).ok()
    assert (run / "export" / "model.pt2").is_file()


def test_one_rank_of_ddp_is_on_nccl_and_trains_as_one_process(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    plain = fit(
        pictures, visible_gpu, "accelerator.gpus=1", "trainer.deterministic=true", "run.name=plain"
    )
    ddp = fit(
        pictures,
        visible_gpu,
        *(
            "accelerator.gpus=1",
            "accelerator.strategy=ddp",
            "trainer.deterministic=true",
            "run.name=ddp",
        ),
    )
    assert computation(pictures)["backend"] == "nccl"
    losses = [float(read_metrics(run)[-1]["train/loss"]) for run in (plain, ddp)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_images_are_loaded_while_the_gpu_computes(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    """The share of a step that is spent waiting for data is printed, and bounded loosely."""
    copies = [path for path in (pictures.folder / "pictures").rglob("*.png") for _ in range(40)]
    for number, path in enumerate(copies):
        shutil.copy(path, path.with_name(f"copy-{number}.png"))
    workers = max(1, min(8, len(os.sched_getaffinity(0)) - 1))
    words = (
        *(
            "accelerator.gpus=1",
            "accelerator.precision=bf16-mixed",
            "model.init_args.backbone=resnet50",
        ),
        *(
            "data.init_args.image_size=224",
            "data.init_args.batch_size=32",
            f"data.init_args.num_workers={workers}",
        ),
        *(
            "callbacks.times.class_path=my_gpu.WriteTimes",
            "trainer.max_epochs=4",
            "trainer.limit_val_batches=0",
        ),
    )
    pictures.run_cold("fit", "-c", "pictures.yaml", *words, environ=visible_gpu, timeout_s=280).ok()
    times = read_json(pictures.folder / "times.json")
    share = times["wait_s"] / times["step_s"]
    print(f"waiting for data: {share:.1%} of {times['steps']} steps, {workers} workers")
    assert share < 0.5


def test_a_step_takes_about_as_long_as_one_written_by_hand(
    pictures: Workspace, visible_gpu: Environ
) -> None:
    """The ratio is printed, and bounded loosely."""
    times = {"class_path": "my_gpu.WriteTimes"}
    job = {
        "seed_everything": 7,
        "model": "my_gpu.ResNet",
        "data": "my_gpu.NoiseImages",
        "accelerator": {"gpus": 1, "precision": "bf16-mixed"},
        "callbacks": {"times": times},
        "trainer": {"max_epochs": 8, "logger": False, "limit_val_batches": 0},
    }
    pictures.write("plain_loop.py", PLAIN_LOOP)
    pictures.write("speed.yaml", job)
    by_hand = json.loads(
        pictures.run_cold("8", script="plain_loop.py", environ=visible_gpu).ok().out
    )
    pictures.run_cold("fit", "-c", "speed.yaml", environ=visible_gpu, timeout_s=280).ok()
    ratio = read_json(pictures.folder / "times.json")["step_s"] / by_hand
    print(
        f"a step takes {ratio:.2f} times that of a loop by hand, which takes"
        f" {by_hand * 1000:.1f} ms"
    )
    assert ratio < 1.5
