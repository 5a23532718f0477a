"""`lightkit fit --help` on one screen, 80 columns wide; `help_topics` explains sections, keys and classes.

Apart from it, because the screen loads neither torch nor the package that reads configs.
"""

from __future__ import annotations

OWN_OPTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "fit": (
        ("--if-changed", "train only if config, data or code changed; else code 6"),
        ("--unchanged-ok", "with --if-changed: code 0 in place of 6"),
        ("--deadline WHEN", "stop in time: 05:30, or a duration such as 4h or 90m"),
    ),
    "export": (
        ("--format NAMES", "torch_export (model.pt2, the default), onnx,"),
        ("", "torchscript, safetensors, with commas between; or all;"),
        ("", "module:NAME: by the module's own export_model"),
        ("--run RUN", "a run folder or latest, without -c; or an address"),
        ("", "in MLflow, such as models:/flowers@champion"),
        ("--ckpt_path WHICH", "best (the default of a run), last, or a file"),
        ("--output DIR", "where the files go; default RUN/export, else ./export"),
        ("--with-preprocessing", "uint8 images in, probabilities out"),
        ("--input-shape SHAPE", "batch first: 1,3,8,8 or 1,9:int64; several: 1,3;1,8;"),
        ("", "else example_input_array, or a batch of the data"),
        ("--num-samples N", "validation samples that verify it; default 64"),
        ("--rtol, --atol X", "how far outputs may be off; default by precision"),
        ("--opset N", "of ONNX; default the newest that is tested"),
        ("--half, --int8", "also model.half.onnx; model.int8.onnx, quantised"),
    ),
    "predict": (
        ("IMAGES", "folders, files, 'globs', a table of paths; or -"),
        ("--model FILE", "an exported model: .onnx, .pt2, .ts; .safetensors"),
        ("", "with the config or run that its module is from"),
        ("--output FILE", "predictions.csv, .parquet or .jsonl; - for CSV here"),
        ("--contact-sheet FILE", "an HTML page of thumbnails, least certain first"),
        ("--top-k N", "classes listed for each image; default 3"),
        ("--ckpt_path WHICH", "best (the default of a run), last, or a file"),
    ),
}
"""Options of single stages: what is typed, and its help; a row without the first continues the one above."""
_KEYS = {
    "model": "ImageClassifier, Regressor, or my_module.Net",
    "data": "Flowers, FashionMNIST, ..., my_module.Data",
    "model.KEY, data.KEY": "its argument, as --model.backbone=small_cnn",
    "trainer.max_epochs=null": "null: 1000 without max_steps; -1: no end",
    "trainer.gradient_clip_val=null": "longest gradient",
    "trainer.accumulate_grad_batches=1": "batches to a step of the optimizer",
    "trainer.log_every_n_steps=null": "steps between records of metrics; null: 50",
    "trainer.limit_train_batches=null": "batches to an epoch, or a share such as 0.1",
    "trainer.fast_dev_run=false": "one batch of everything, to see if it runs",
    "accelerator": "auto, cpu, gpu or tpu; or the keys below",
    "accelerator.gpus": "2, [0, 3], -1 for all; so too .tpu_cores",
    "accelerator.strategy": "ddp, fsdp, deepspeed, horovod, ...",
    "accelerator.precision": "32-true, bf16-mixed, ...; auto: a rule",
    "launch.engine=null": "local, horovod, torchrun, spark, ray, slurm",
    "launch.processes=null": "number of processes, each with one device",
    "callbacks.NAME": "early_stopping, swa, ...; null takes it out",
    "callbacks.checkpoint.monitor=auto": "metric that decides which epoch is best",
    "logger.NAME": "tensorboard, csv, mlflow, comet",
    "optimizer, lr_scheduler": "a class: --optimizer=SGD --optimizer.lr=0.1",
    "run.name=null": "name of the job; null: the first file's name",
    "run.root=runs": "folder of all runs",
    "run.resume=auto": "auto, never, latest, or the folder of a run",
    "seed_everything=true": "seed of all random numbers; true: any",
    "ckpt_path=null": "checkpoint to start from: path, last or best",
}
"""Keys that are set often, with their defaults."""
_TRAINING_KEYS = ("trainer.", "callbacks", "optimizer", "run.resume")
_EXPORT_KEYS = ("model", "data", "model.KEY, data.KEY", "run.root=runs", "seed_everything=true")
_TOPICS = """\
  --help SECTION [KEY]   trainer, run, launch, watchdog, gate, accelerator: keys
                         and defaults
  --help SECTION [CLASS] model, data, callbacks, logger, optimizer,
                         lr_scheduler: classes; the arguments of one, as in
                         --help model my_module.Net
  --help all             everything, as LightningCLI prints it (takes seconds)
"""


def show_help(command: str, does: str) -> int:
    """Print the help of a stage, and return the exit code.

    Args:
        command: The stage.
        does: Its purpose, as the list of commands has it.
    """
    events = "each step and the proof" if command == "export" else "the run's events"
    options = [
        *OWN_OPTIONS.get(command, ()),
        ("-c FILE", "a layer of the config; later ones win over earlier ones"),
        *([] if command in ("fit", "export") else [("--run RUN", "a run folder, or latest; needs no -c")]),
        ("--print_config", "print the resolved config and stop"),
        ("--trust", "let checkpoints and weights run code as they load"),
        ("--quiet", "print warnings and errors only"),
        ("--output json", f"print {events}, one JSON object a line"),
    ]
    keys = [key for key in _KEYS if not key.startswith(_TRAINING_KEYS) or key.startswith("trainer.fast_dev_run")]
    keys = [*_EXPORT_KEYS] if command == "export" else [*_KEYS] if command == "fit" else keys
    lines = [
        f"usage: lightkit {command} {'[IMAGES]... ' * (command == 'predict')}[-c FILE]... [--KEY=VALUE]... "
        "[KEY=VALUE]...",
        f"\n{does[0].upper()}{does[1:]}.\n",
        "options:",
        *(f"  {typed:21}  {text}" for typed, text in options),
        _TOPICS,
        "keys and defaults; --KEY=VALUE or KEY=VALUE, in a file trainer: {max_epochs: 3}",
        *(f"  {key:34}{_KEYS[key]}" for key in keys),
    ]
    print("\n".join(lines))
    return 0
