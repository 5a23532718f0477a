"""`lightkit register`: a run's model into MLflow's registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lightkit.cli.command_line import RUN_OPTIONS, get_run_argument, parse_options
from lightkit.cli.stage_runner import open_run_context
from lightkit.errors import ConfigError
from lightkit.registry.store import check_alias, check_name

if TYPE_CHECKING:
    from lightkit.registry.package import PackageFormat

HELP = """\
usage: lightkit register --run RUN|latest --name NAME [--alias ALIAS]... [--key=value]...

Put a run's model into MLflow's registry as a new version, with its exports, and with tags that lead back to the run:
its folder, git commit, data and checkpoint. The model of an image classifier takes images as they are, uint8
(batch, height, width, 3) in RGB, and gives class probabilities; that of another module is its forward. It is loaded
with torch alone, and is compared with the trained module before it is sent.

  --run RUN            a run or latest
  --name NAME          of the registered model; in Unity Catalog CATALOG.SCHEMA.NAME
  --alias ALIAS...     points to this version from now on; may be given again; default: challenger; none: no alias
  --ckpt_path CKPT     best, last or a file; default: best
  --format FORMAT      torch_export (default) or torchscript
  --tracking-uri URI   where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --input-shape SIZES  of the input, where neither data nor the module tell it, such as 1,3,224,224
  --trust              load a checkpoint that holds more than tensors and plain values, and so may run code
  -c FILE              a layer on top of the run's config
  --quiet              print warnings and errors only

Before its default, --tracking-uri is what the run's config or MLFLOW_TRACKING_URI says. A training that MLflow did not
record gets an MLflow run of its own, in the experiment MLFLOW_EXPERIMENT_NAME or one of the run's name.
Exit code 0: registered; 2: wrong arguments, or MLflow refuses; 5: the model cannot be written so that it answers as
before; 75: MLflow does not answer, try again later.

lightkit register --run latest --name flowers
mlflow models serve -m models:/flowers@challenger --env-manager local
"""


def register(args: list[str]) -> int:
    """Register the model of a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run or checkpoint, or MLflow refuses.
        ExportError: If the model cannot be written so that it gives the same answers.
        ServerAway: If MLflow does not answer.
    """
    line = parse_options(HELP, args, config={**RUN_OPTIONS, "--input-shape": "value"}, most=1)
    options, run = line.options, get_run_argument(line)
    if "--name" not in options:
        raise line.error("under which name? Give --name, such as --name flowers.")
    name = check_name(options["--name"])
    form = line.get_choice("--format", ("torch_export", "torchscript"), "torch_export")
    aliases = list(dict.fromkeys(options.get("--alias", "challenger").split(",")))
    if "none" in aliases and len(aliases) > 1:
        raise ConfigError(f"--alias: none stands alone, got {', '.join(aliases)}")
    aliases = [check_alias(alias) for alias in aliases if alias != "none"]
    context = open_run_context(["--run", run, *line.config_args])
    from lightkit.cli.registration import register_run  # it loads torch

    register_run(context, name, aliases, form=cast("PackageFormat", form), tracking_uri=options.get("--tracking-uri"))
    return 0
