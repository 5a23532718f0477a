"""The options that one stage has and others have not, for its help and for completion. No torch."""

from __future__ import annotations

__all__ = ["OWN_OPTIONS"]

OWN_OPTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "fit": (
        ("--if-changed", "train only if config, data or code changed; else code 6"),
        ("--unchanged-ok", "with --if-changed: code 0 in place of 6"),
        ("--deadline WHEN", "stop in time: 05:30, or a duration such as 4h or 90m"),
    ),
    "export": (
        ("--format NAMES", "torch_export (model.pt2, the default), onnx,"),
        ("", "torchscript, safetensors, with commas between; or all"),
        ("--run RUN", "a run folder or latest, without -c; or an address"),
        ("", "in MLflow, such as models:/flowers@champion"),
        ("--ckpt_path WHICH", "best (the default of a run), last, or a file"),
        ("--output DIR", "where the files go; default RUN/export, else ./export"),
        ("--with-preprocessing", "uint8 images in, probabilities out"),
        ("--input-shape SHAPE", "batch first: 1,3,8,8 or 1,9:int64; several: a:1,3;b:1,8;"),
        ("", "else example_input_array, or a batch of the data"),
        ("--num-samples N", "validation samples of all classes that prove it; default 64"),
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
        ("--top-k N", "classes told of each image; default 3"),
        ("--ckpt_path WHICH", "best (the default of a run), last, or a file"),
    ),
}
"""By stage: what is typed, and what it does; a line without the first goes on with the one above."""
