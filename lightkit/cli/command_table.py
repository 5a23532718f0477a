"""The table of commands: each with its options, inputs and help.

`parse` reads a command line by it.

It imports next to nothing: a command's own module is imported once the command is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lightkit.cli.command_line import (
    FILES,
    FOLDERS,
    Command,
    Input,
    Invocation,
    Option,
    parse_command,
)
from lightkit.errors import ConfigError, near

STAGES = ("fit", "validate", "test", "predict")
WITH_MODEL = (*STAGES, "export")
"""Commands that build a config's model."""
EXPORT_FORMATS = ("torch_export", "onnx", "torchscript", "safetensors", "all")
EXPORT_SUFFIXES = (".pt2", ".onnx", ".ts", ".safetensors")
SKIPPABLE = ("test", "export", "promote")
"""Stages that a retrain can leave out."""
TEMPLATES = ("module", "image", "ci", "cron")
RUNS = ("latest", FOLDERS)
CHECKPOINTS = ("last", "best", FILES)
RANK = "--rank"
"""First word of a rank of a launch, before its invocation as JSON."""

# -- options that several commands have ------------------------------------------------------------

CONFIG = Option(
    "-c",
    "a layer of the config; later ones win over earlier ones",
    value="FILE",
    aliases=("--config",),
    completes=(FILES,),
)
RUN = Option("--run", "a run folder, or latest; needs no -c", value="RUN", completes=RUNS)
RUN_HIDDEN = RUN._replace(is_hidden=True)
"""Refused with a hint."""
PRINT_FLAGS = ("skip_default", "skip_null", "skip_unset")
PRINT_CONFIG = Option(
    "--print_config",
    "print the resolved config and stop",
    value="FLAGS",
    is_optional=True,
    completes=PRINT_FLAGS,
)
TRUST = Option("--trust", "allow checkpoints and weights to run code when loaded")
TRUST_CHECKPOINTS = TRUST._replace(
    help="load checkpoints that hold more than tensors and plain values, and so may run code"
)
QUIET = Option("--quiet", "print warnings and errors only")
JSON = Option("--json", "one JSON object", value_of=("--output", "-o"))
EVENTS = JSON._replace(help="print the run's events, one JSON object a line")
CKPT_PATH = Option(
    "--ckpt_path", "best, last or a file; default: best", value="CKPT", completes=CHECKPOINTS
)
CKPT_PATH_HIDDEN = CKPT_PATH._replace(is_hidden=True)
WHICH_CHECKPOINT = CKPT_PATH._replace(
    help="best (the default of a run), last, or a file", value="WHICH"
)
ROOT = Option(
    "--root",
    "folder of all runs; default: LIGHTKIT_RUN__ROOT, else runs",
    value="FOLDER",
    aliases=("--run.root",),
    completes=(FOLDERS,),
)
OUTPUT_FILE = Option("--output", value="FILE", aliases=("-o",), completes=(FILES,))
JUNIT = Option("--junit", value="FILE", completes=(FILES,))
EXPORT_FORMAT = Option("--export-format", value="FORMAT", completes=EXPORT_FORMATS)
UNCHANGED_OK = Option("--unchanged-ok", "with --if-changed: code 0 in place of 6")
ALIAS = Option("--alias", "the alias that moves", value="ALIAS", default="champion")
REASON = Option("--reason", "for the log", value="TEXT")
_POSITIVE = Option("", value="N", kind="count", least=1)
_SHARE = Option("", value="SHARE", kind="number")
TRACKING_URI = Option(
    "--tracking-uri",
    "where MLflow is; default: where the training was tracked, else mlflow.db in the run root",
    value="URI",
)
ROOT_OF_REGISTRY = ROOT._replace(
    help=(
        "folder of all runs, with the registry in its mlflow.db; default:"
        " LIGHTKIT_RUN__ROOT, else runs"
    )
)
REGISTRY_URI = TRACKING_URI._replace(
    help="where MLflow is; default: MLFLOW_TRACKING_URI, else mlflow.db in the run root"
)
CONFIG_OVER_RUN = CONFIG._replace(help="a layer on top of the run's config")
OF_MODEL = ("run", "ckpt_path", "trust", "quiet", "input-shape")
"""Options of the commands on a run's model that name the model."""
OF_FIT = ("run", "ckpt_path", "trust", "quiet", "json")
"""Options of other commands that mean for their fit the same as for `lightkit fit`."""


def _hide(options: Iterable[Option]) -> Iterator[Option]:
    """Leave options out of the help."""
    for option in options:
        yield option._replace(is_hidden=True)


# -- the stages ------------------------------------------------------------------------------------

_TRIAL = Option(
    "--trial",
    "the trial of a sweep that it is",
    value="NAME/NUMBER",
    is_hidden=True,
    is_internal=True,
)
_TRIAL_DATA = Option(
    "--trial-data",
    "fingerprint of the data of the sweep's earlier trials",
    value="SHA256",
    is_hidden=True,
    is_internal=True,
)
FIT_OPTIONS = (
    Option("--if-changed", "train only if config, data or code changed; else code 6"),
    UNCHANGED_OK,
    Option("--deadline", "stop in time: 05:30, or a duration such as 4h or 90m", value="WHEN"),
    CONFIG,
    PRINT_CONFIG,
    TRUST,
    QUIET,
    EVENTS,
    CKPT_PATH_HIDDEN,
    RUN_HIDDEN,
    _TRIAL,
    _TRIAL_DATA,
    Option(
        "--trial-waits",
        "each epoch of the trial waits for the sweep",
        is_hidden=True,
        is_internal=True,
    ),
)
_EVALUATION_OPTIONS = (
    CONFIG,
    RUN,
    PRINT_CONFIG,
    TRUST,
    QUIET,
    EVENTS,
    CKPT_PATH_HIDDEN,
    _TRIAL,
    _TRIAL_DATA,
)
_PREDICT_OPTIONS = (
    Option(
        "--model",
        "an exported model: .onnx, .pt2, .ts; .safetensors with the config"
        " or run that its module is from",
        value="FILE",
        suffixes=EXPORT_SUFFIXES,
        completes=(FILES,),
    ),
    Option(
        "--output",
        "predictions.csv, .parquet or .jsonl; -: CSV on stdout",
        value="FILE",
        aliases=("-o",),
        completes=(FILES,),
    ),
    Option(
        "--contact-sheet",
        "an HTML page of thumbnails, least certain first",
        value="FILE",
        completes=(FILES,),
    ),
    Option("--top-k", "classes of each image; default 3; all: a column each", value="N"),
    WHICH_CHECKPOINT,
    CONFIG,
    RUN,
    PRINT_CONFIG,
    TRUST,
    QUIET,
    EVENTS,
)
_EXPORT_OPTIONS = (
    Option(
        "--format",
        "torch_export (model.pt2, the default), onnx, torchscript, safetensors, with commas"
        " between; or all; module:NAME: by the module's own export_model",
        value="NAMES",
        completes=EXPORT_FORMATS,
    ),
    RUN._replace(
        help=(
            "a run folder or latest, without -c; or an address in MLflow, such as"
            " models:/flowers@champion"
        )
    ),
    WHICH_CHECKPOINT,
    Option(
        "--output",
        "where the files go; default RUN/export, else ./export",
        value="DIR",
        aliases=("-o",),
        completes=(FOLDERS,),
    ),
    Option("--with-preprocessing", "uint8 images in, probabilities out"),
    Option(
        "--input-shape",
        "batch first: 1,3,8,8 or 1,9:int64; several: 1,3;1,8; else example_input_array, or a batch"
        " of the data",
        value="SHAPE",
    ),
    Option("--num-samples", "validation samples that verify it; default 64", value="N"),
    Option("--rtol", "how far outputs may be off, relative; default by precision", value="X"),
    Option("--atol", "the same, absolute", value="X"),
    Option("--opset", "of ONNX, 18 to 23; default 20", value="N"),
    Option("--half", "also model.half.onnx, with weights in float16"),
    Option("--int8", "also model.int8.onnx, quantised"),
    CONFIG,
    PRINT_CONFIG,
    TRUST,
    QUIET,
    EVENTS._replace(help="print each step and the proof, one JSON object a line"),
)


def _list_stage_options() -> Iterator[Option]:
    """List the options of all stages for `check`, which has those not listed here itself."""
    own = {"--run", "--trust", "--json", "--quiet"}
    for options in (FIT_OPTIONS, _PREDICT_OPTIONS):
        for option in options:
            if option.name not in own:
                own.add(option.name)
                yield option._replace(is_hidden=option.name != "-c", choices=())


def _create_stage(
    name: str,
    summary: str,
    options: tuple[Option, ...],
    *,
    inputs: tuple[Input, ...] = (),
    module: str = "",
) -> Command:
    words = "[IMAGES]... " if inputs else ""
    return Command(
        name,
        summary,
        usage=f"lightkit {name} {words}[-c FILE]... [--KEY=VALUE]... [KEY=VALUE]...",
        about=f"{summary[0].upper()}{summary[1:]}.",
        inputs=inputs,
        options=options,
        max_inputs=None if inputs else 0,
        input_choices=(FILES,) if inputs else (),
        takes_config=True,
        module=module,
        function="run_stage" if module else "",
    )


_STAGE_RUNNER = "lightkit.cli.stage_runner"
_STAGE_COMMANDS = (
    _create_stage(
        "fit",
        "train a model, or resume the run that was interrupted",
        FIT_OPTIONS,
        module=_STAGE_RUNNER,
    ),
    _create_stage(
        "validate",
        "score a run's best checkpoint on the validation split",
        _EVALUATION_OPTIONS,
        module=_STAGE_RUNNER,
    ),
    _create_stage(
        "test",
        "score a run's best checkpoint on the test split",
        _EVALUATION_OPTIONS,
        module=_STAGE_RUNNER,
    ),
    _create_stage(
        "predict",
        "label images, or write a run's predictions for the test split",
        _PREDICT_OPTIONS,
        inputs=(Input("IMAGES", "folders, files, 'globs', a table of paths or rows; or -"),),
    ),
    _create_stage("export", "write a model to files that are verified against it", _EXPORT_OPTIONS),
)

# -- the other commands ----------------------------------------------------------------------------

_OTHER_COMMANDS = (
    Command(
        "register",
        "put a run's model into MLflow's registry",
        usage="lightkit register --run RUN|latest --name NAME [--alias ALIAS]... [--key=value]...",
        about="""\
Put a run's model into MLflow's registry as a new version, with its exports, and with tags that
lead back to the run: its folder, git commit, data and checkpoint. The model of an image
classifier takes images as they are, uint8 (batch, height, width, 3) in RGB, and gives class
probabilities; that of another module is its forward. It is loaded with torch alone, and is
compared with the trained module before it is sent.""",
        options=(
            RUN._replace(help="a run or latest"),
            Option(
                "--name",
                "of the registered model; in Unity Catalog CATALOG.SCHEMA.NAME",
                value="NAME",
            ),
            Option(
                "--alias",
                "points to this version from now on; may be given again; none: no alias",
                value="ALIAS",
                default=("challenger",),
                is_list=True,
            ),
            CKPT_PATH,
            Option(
                "--format",
                "torch_export or torchscript",
                value="FORMAT",
                default="torch_export",
                choices=("torch_export", "torchscript"),
            ),
            TRACKING_URI,
            Option(
                "--input-shape",
                "of the input, where neither data nor the module tell it, such as 1,3,224,224",
                value="SIZES",
            ),
            TRUST_CHECKPOINTS,
            CONFIG_OVER_RUN,
            QUIET,
        ),
        ending="""\
Before its default, --tracking-uri is what the run's config or MLFLOW_TRACKING_URI says. A
training that MLflow did not record gets an MLflow run of its own, in the experiment
MLFLOW_EXPERIMENT_NAME or one of the run's name.
Exit code 0: registered; 2: wrong arguments, or MLflow refuses; 5: the model cannot be written
so that it answers as before; 75: MLflow does not answer, try again later.

lightkit register --run latest --name flowers
MLFLOW_TRACKING_URI=sqlite:///runs/mlflow.db mlflow models serve \\
    -m models:/flowers@challenger --env-manager local""",
        max_inputs=1,
        input_choices=RUNS,
        takes_config=True,
    ),
    Command(
        "serve",
        "answer requests over HTTP with a run's model",
        usage=(
            "lightkit serve (--run RUN | --model MODEL) [--port N] [--host"
            " ADDRESS] [--max-request SIZE]"
        ),
        about="""\
Serve a model with LitServe (pip install 'lightkit-train[serve]') until Ctrl-C or SIGTERM: a
picture in, class names with probabilities out, as JSON; or rows of numbers, for a model that
takes them. The model is a verified ONNX file; of a run or a registered model it is exported
first where there is none. The answers are those of lightkit predict.""",
        options=(
            RUN._replace(help="a run folder or latest: its best checkpoint"),
            Option(
                "--model",
                "model.onnx, or an address in MLflow, such as models:/flowers@champion",
                value="MODEL",
                completes=(FILES,),
            ),
            Option(
                "--host",
                "127.0.0.1: this machine alone; 0.0.0.0 or :: for all who reach it",
                value="ADDRESS",
                default="127.0.0.1",
                choices=("127.0.0.1", "0.0.0.0", "::"),  # noqa: S104 - LitServe takes these
            ),
            Option("--port", value="N", default=8000, kind="count"),
            Option("--max-request", "largest request", value="SIZE", default="20M"),
            _POSITIVE._replace(
                name="--max-batch-size", help="requests that are predicted together", default=32
            ),
            _POSITIVE._replace(
                name="--top-k", help="classes of an answer, the likeliest; default: all"
            ),
            _POSITIVE._replace(name="--workers", help="processes that predict", default=1),
            _POSITIVE._replace(name="--threads", help="of each of them; default: onnxruntime's"),
            ROOT,
            QUIET,
        ),
        ending="""\
POST /predict takes a form (curl -F image=@photo.jpg), a picture as the body (Content-Type:
image/jpeg), or JSON: {"rows": [[1.5, 2.0]]}. GET /health answers 200 once the model is loaded,
GET /info describes it. A request that is wrong gets a status of 400 to 499, and why.
Exit code 0: ended by a signal; 2: wrong arguments, or the port is taken; 3: the file is not
what was exported; 5: the model cannot be exported.

lightkit serve --run latest
curl -F image=@photo.jpg http://127.0.0.1:8000/predict""",
        max_inputs=0,
    ),
    Command(
        "retrain",
        "fit, test, export, judge and promote, as a schedule does",
        usage=(
            "lightkit retrain -c FILE... [--deadline WHEN] [--skip STAGE]... [--key=value]...\n"
            "                        [key=value]..."
        ),
        about="""\
Fit, test, export, gate and promote, as a schedule does at night. -c and keys are those of
lightkit fit. Each stage is a process, forked from one that has imported torch once; the run's
retrain.json says how far they have come. After a kill the same command goes on with the stage
that was not finished: nothing is trained or promoted twice. It holds the job's lock from the
first stage to the last. The gate takes the scores of test where it can. Without gate.metric
nothing is judged, and nothing promoted. Nothing is trained while the champion is held (lightkit
promote --hold), or where the training would repeat one whose model was rolled back.""",
        options=(
            CONFIG,
            Option(
                "--deadline",
                "be done by then: 05:30 (the next), a duration such as 4h, 90m or 1h30m, or "
                "2026-11-23T05:30. Training stops in time for what follows; what does not fit any "
                "more is left to the next start",
                value="WHEN",
            ),
            Option(
                "--reserve",
                "time to leave for what follows the training; default: one and a half times what it"
                " took in the last retrains, and 10 s; the first time a quarter of the time there"
                " is, at most 15m",
                value="DURATION",
            ),
            Option(
                "--skip",
                "leave out test, export, or promote; may be given again",
                value="STAGE",
                is_list=True,
                completes=SKIPPABLE,
            ),
            EXPORT_FORMAT._replace(help="as for lightkit export", default="torch_export"),
            Option(
                "--if-changed",
                "train only if config, data or code changed since the last run that ended well;"
                " else code 6. Where the gate alone has changed, that run is"
                " judged again without a training",
            ),
            UNCHANGED_OK,
            Option("--reason", "why, for the log of promotions", value="TEXT"),
            JUNIT._replace(help="write a case for each stage, for CI systems"),
            CKPT_PATH._replace(help="start the training from a checkpoint: best, last or a file"),
            TRUST_CHECKPOINTS,
            QUIET,
            JSON._replace(help="print the events of all stages, one JSON object a line"),
            RUN_HIDDEN,
        ),
        ending="""\
Exit code 0: done; 4: the gate failed, and the next start trains anew (with --if-changed once
something has changed), or nothing may be promoted: the champion is held, or the model was
rolled back before; 6: nothing has changed; 75: interrupted, out of time, or another process
runs the job: the same command goes on; another: that of the stage that failed, at which the
same command goes on until it has failed three times.

lightkit retrain -c lightkit:flowers --gate.metric test/accuracy --gate.min 0.8 --deadline 05:30""",
        takes_config=True,
    ),
    Command(
        "sweep",
        "search the best values of some keys, or go on with a search",
        usage=(
            "lightkit sweep -c FILE... [--space KEY=VALUE,VALUE]... [--deadline WHEN]"
            " [--key=value]...\n       lightkit sweep -c FILE... --seeds N\n       lightkit sweep"
            " -c FILE... --status [--output json]"
        ),
        about="""\
Train a config with other values of the keys that its section `sweep` names, and find the best.
Each trial is an ordinary run with one more layer, sweeps/NAME/trials/NUMBER/trial.yaml; the first
is the config itself. The record is sweeps/NAME/trials.jsonl, next to the folder of the runs: after
a kill the same command goes on, finished trials count, and interrupted ones resume at their
batch. It holds the job's lock. A trial that fails is recorded with its reason, and the search
goes on.""",
        options=(
            CONFIG,
            Option(
                "--space",
                "try each of these values, a grid without a file; may be given again",
                value="KEY=VALUE,VALUE",
                is_list=True,
            ),
            _POSITIVE._replace(
                name="--seeds",
                help=(
                    "train the config itself with N seeds; print mean,"
                    " standard deviation and 95 % interval"
                ),
            ),
            Option("--status", "print how the sweep stands, and start nothing"),
            Option(
                "--deadline",
                "be done by then: 05:30, or a duration such as 4h or"
                " 90m; trials that run are saved",
                value="WHEN",
            ),
            JUNIT._replace(help="write a case for each trial, for CI systems"),
            CKPT_PATH._replace(help="start each trial from a checkpoint: best, last or a file"),
            TRUST_CHECKPOINTS,
            QUIET,
            JSON._replace(help="print each trial, one JSON object a line"),
            RUN_HIDDEN,
        ),
        ending="""\
sweep:
  metric: val/loss                   # default: the metric that the checkpoint monitors
  trials: 40                         # finished ones in total, over all starts
  pruner: {kind: median, warmup_epochs: 3}
  space:
    model.learning_rate: {log: [1e-5, 1e-1]}
    model.backbone: [small_cnn, resnet18]
    data.batch_size: {int: [16, 128], step: 16}

`lightkit fit --help sweep` describes each key. Values are proposed by Optuna 5, which the extra
lightkit-train[sweep] installs.
Exit code 0: done; 1: no trial is within all bounds, or too many have failed for the same reason;
2: the config is wrong; 3: the data is; 75: interrupted, out of time, or another process runs the
job: the same command goes on.

lightkit sweep -c lightkit:flowers --space model.learning_rate=1e-4,1e-3,1e-2""",
        takes_config=True,
    ),
    Command(
        "gate",
        "compare a run with its thresholds and the champion",
        usage="lightkit gate RUN [--baseline MODEL] [-c FILE]... [--gate.KEY=value]...",
        about="""\
Judge a run's best checkpoint by the config's `gate` block: its thresholds, those of single
classes, the model that it is compared with (the champion), and the best of the models promoted
of late. Both models are scored in this process by their own test or validation steps, on the
same samples in the same order: those of the run's data as it is now, prepared for each model as
its own config says, with the classes of its own checkpoint. The decision is written to
gate.json in the run folder.""",
        inputs=(Input("RUN", "a run or latest"),),
        options=(
            RUN._replace(help="the same"),
            Option(
                "--baseline",
                "what it is compared with: an alias or a version of the"
                " registered model, a run, or null",
                value="MODEL",
            ),
            CKPT_PATH,
            TRACKING_URI,
            JSON._replace(help="print the decision as one JSON object"),
            JUNIT._replace(help="write each condition as a test case of JUnit"),
            Option(
                "--allow-empty",
                "pass a run that there is no rule for: gate.metric"
                " alone, or nothing, in the config",
            ),
            TRUST_CHECKPOINTS,
            CONFIG_OVER_RUN,
            QUIET,
        ),
        ending="""\
gate:
  metric: test/accuracy              # its first part names the split: test or val
  min: 0.8
  margin: 0.02                       # shown to be less than this worse than the baseline
  confidence: 0.95                   # of the margin, one-sided
  baseline: champion
  slices: {roses: 0.7}               # the value that a class has of the metric
  drift: {window: 5, max_drop: 0.03} # below the best of the last 5 promoted models

`lightkit fit --help gate` describes each key. Where nothing is promoted yet, the thresholds
decide alone.
Exit code 0: good enough; 2: wrong arguments, or the baseline cannot be had; 3: unknown classes
in the data; 4: not good enough; 75: MLflow does not answer, try again later.

lightkit gate latest --gate.metric=test/accuracy --gate.min=0.8""",
        max_inputs=1,
        input_choices=RUNS,
        takes_config=True,
    ),
    Command(
        "promote",
        "make a run that passes its gate the champion",
        usage=(
            "lightkit promote RUN [--name NAME] [--alias champion] [--reason TEXT] [--force]\n"
            "       lightkit promote --hold NAME [--alias champion] [--reason TEXT]\n"
            "       lightkit promote --release NAME [--alias champion]"
        ),
        about="""\
Point an alias of MLflow's registry, the champion, to a run's model. The run must have
passed its gate with this checkpoint, these settings and today's champion; where gate.json is of
others, older than a day, or missing, it is judged now. Without gate.metric nothing judges it,
and a warning says so. What was rolled back is promoted by --force alone, also where another
training has made it again: the same weights, or the same config, data and code. A run that is
not registered is registered first, as `lightkit register` does, with the alias challenger. The
move is written to the promotion log in the registry once it is done. If the command is killed
in between, the same command writes what is missing.

An alias that is held stays where it is: until it is released, promote and retrain end with 4,
also with --force. `lightkit rollback` moves it all the same.""",
        inputs=(Input("RUN", "a run or latest"),),
        options=(
            RUN._replace(help="the same"),
            Option(
                "--name",
                "of the registered model; default: gate.name, else the run's name",
                value="NAME",
            ),
            ALIAS,
            REASON,
            Option(
                "--force",
                "promote a run that has not passed or was rolled back; the log records it",
            ),
            Option("--hold", "keep the alias of this registered model where it is", value="NAME"),
            Option("--release", "allow it to move again", value="NAME"),
            TRACKING_URI,
            CKPT_PATH,
            JSON._replace(help="print what was done as one JSON object"),
            JUNIT._replace(help="write it as a test case of JUnit"),
            TRUST_CHECKPOINTS,
            CONFIG_OVER_RUN,
            QUIET,
        ),
        ending="""\
`lightkit history NAME` prints the log, and `lightkit rollback NAME` goes back.
Exit code 0: it is the champion; 2: wrong arguments, or MLflow refuses; 4: not good enough,
rolled back before, or the alias is held; 5: the model cannot be written so that it answers as
before; 75: MLflow does not answer, or another process promotes; try again later.

lightkit promote latest --name flowers --reason "retrained on the photos of November\"""",
        max_inputs=1,
        input_choices=RUNS,
        takes_config=True,
    ),
    Command(
        "rollback",
        "make the previous champion the champion again",
        usage="lightkit rollback NAME [--to VERSION] [--reason TEXT] [--alias champion]",
        about="""\
Make the previous champion, by the promotion log, the champion again. Twice goes back two: a
version that was rolled back is skipped, and is promoted again only with --force. A version that
was deleted is skipped too.""",
        inputs=(Input("NAME", "the registered model"),),
        options=(
            Option("--to", "go to this version instead", value="VERSION"),
            REASON,
            ALIAS,
            ROOT_OF_REGISTRY,
            REGISTRY_URI,
            JSON._replace(help="print what was done as one JSON object"),
            QUIET,
        ),
        ending="""\
Exit code 0: done; 2: wrong arguments, or there is no version to go back to; 75: MLflow does not
answer, or another process promotes; try again later.

lightkit rollback flowers --reason "roses are taken for tulips\"""",
        max_inputs=1,
    ),
    Command(
        "history",
        "print who promoted what, when and why",
        usage="lightkit history [NAME] [--output json]",
        about="""\
Print the promotion log of a registered model, oldest first: when, what, from which version to
which, by whom, with which score, and why. Without NAME the registered models are listed, each
with the version that is the champion. The log is in MLflow's registry, and nothing in it is
written again. A move that it lacks, because the alias was moved outside lightkit or by a
process that was killed, is shown as one from outside. Below it stands who holds an alias where
it is (lightkit promote --hold).""",
        inputs=(Input("NAME", "the registered model; without it all are listed"),),
        options=(
            ROOT_OF_REGISTRY,
            REGISTRY_URI,
            JSON._replace(help="print one JSON object a line"),
        ),
        ending="""\
Exit code 0: printed, also where nothing was promoted yet; 2: wrong arguments, or there is no
such model; 75: MLflow does not answer, try again later.

lightkit history flowers""",
        max_inputs=1,
    ),
    Command(
        "runs",
        "print a table of the runs",
        usage=(
            "lightkit runs [NAME] [--sort KEY] [--filter KEY=VALUE]... [--metric METRIC,...]\n"
            "                     [--columns KEY,...] [--output csv|json] [--root FOLDER]"
        ),
        about="""\
Print a table of the runs, the newest first: name, id, status, metric, size and age. A run is
marked `locked` while a process works on it, with the alias that points to its model, such as
`champion`, and `promoted` where one did before. A run whose process was killed has the status
`killed`, and one with a record that is damaged `unreadable`.""",
        inputs=(Input("NAME", "runs of this job only"),),
        options=(
            Option("--sweep", "trials of this sweep only", value="NAME"),
            Option(
                "--metric",
                "metrics that are shown, such as val/accuracy,test/loss; default: what the best "
                "checkpoint was chosen by",
                value="METRIC",
                is_list=True,
            ),
            Option(
                "--columns",
                "keys of the config that are shown, too, such as optimizer.lr,model.backbone; "
                "`init_args` may be left out; or of the run's records: manifest.git.commit, "
                "summary.durations.fit",
                value="KEY",
                is_list=True,
            ),
            Option(
                "--sort",
                "age (the newest first), name, status, size (the largest first), metric;"
                " or a metric (the best first: the largest of an accuracy, the smallest of a loss;"
                " what is not finite is worst) or a key of the config (the smallest first), which"
                " is then shown, too; -KEY turns the order round; runs without a value are last",
                value="KEY",
                default="age",
            ),
            Option(
                "--mode",
                "min or max is best; default: as the config or the metric's"
                " object said, else by its name",
                value="MODE",
                choices=("min", "max"),
            ),
            Option(
                "--filter",
                "only runs with it: status=done, name=flowers, locked=true, promoted=true",
                value="KEY=VALUE",
                is_list=True,
            ),
            ROOT,
            Option("--csv", "a header and a line a run", value_of=JSON.value_of),
            JSON._replace(help="one array of objects"),
            QUIET,
        ),
        ending="""\
lightkit runs flowers --sort metric --filter status=done
lightkit runs --metric val/accuracy,val/loss --columns optimizer.lr,model.backbone \
--sort val/accuracy""",
        max_inputs=1,
        function="show_runs",
    ),
    Command(
        "report",
        "write a run's report, one HTML file",
        usage="lightkit report RUN... [--output FILE] [--root FOLDER] [--quiet]",
        about="""\
Write the report of a run, report.html in its folder: one HTML file that needs no network and no
other file. It is made of the files in the run folder, also of a run that is training, has
failed or was killed; the gate's decision, if there is one, has a page of its own, gate.html. Of
several runs a comparison, comparison.html in the first one's folder: what differs in config,
data, code and versions; metrics with intervals and curves; and by their predictions whether
each is better than the first beyond noise.""",
        options=(
            OUTPUT_FILE._replace(
                help=(
                    "where the page is written; the run folder, which may"
                    " be read-only, is left as it is"
                )
            ),
            ROOT,
            QUIET,
        ),
        ending="""\
lightkit report latest
lightkit report latest flowers/20261123-184026-270b""",
        max_inputs=26,
        input_choices=RUNS,
    ),
    Command(
        "ui",
        "show runs in TensorBoard and MLflow",
        usage="lightkit ui [RUN] [--root FOLDER]",
        about="""\
Start TensorBoard on the runs, or on the one that is named, and MLflow on the database or at the
address where they are tracked; print their links, and that of the newest run's report. Both
listen at a free port of this machine alone (127.0.0.1), show a job while it trains, and end
with this command.""",
        inputs=(Input("RUN", "a run or latest; default: all runs"),),
        options=(ROOT,),
        ending="""\
Exit code 0: ended by Ctrl-C or SIGTERM; 1: one of them ended by itself; 2: there is no run.

lightkit ui latest""",
        max_inputs=1,
        input_choices=RUNS,
    ),
    Command(
        "gc",
        "delete old runs",
        usage=(
            "lightkit gc [NAME] [--keep-last N] [--keep-best N] [--max-size SIZE] [--older-than"
            " TIME]\n                   [--dry-run]"
        ),
        about="""\
Delete the runs that no rule keeps, and print what they were. Never deleted are: a run that a
process works on; one with a record that cannot be read; one whose model an alias in MLflow's
registry points to, or which a rollback would bring back; one that was promoted in another
registry, which is not read; the newest good training of each job; one that the next start would
resume; one of a sweep that is not finished, unless it was stopped early; one from whose
checkpoint a kept run began, or which its config names; a folder without manifest.json; and all
runs that are older than one whose manifest.json cannot be read, which may have begun from
them.""",
        inputs=(Input("NAME", "runs of this job only"),),
        options=(
            Option("--keep-last", "keep the newest N of each job", value="N", kind="count"),
            Option(
                "--keep-best",
                "keep the best N trainings of each job that have a good checkpoint, by each metric"
                " that was used",
                value="N",
                kind="count",
            ),
            Option(
                "--max-size",
                "delete only until all runs fit into SIZE, the oldest"
                " first; 50G, 500M (powers of 1000)",
                value="SIZE",
            ),
            Option("--older-than", "keep what is younger; 30d, 12h", value="TIME"),
            Option(
                "--metric",
                "what is best, such as test/accuracy; default: what the"
                " best checkpoint was chosen by",
                value="METRIC",
            ),
            Option(
                "--mode",
                "min or max of --metric is best; default: as the config or the metric's object"
                " said, else its name",
                value="MODE",
                choices=("min", "max"),
            ),
            Option("--dry-run", "delete nothing, and print what would be deleted"),
            Option(
                "--tracking-uri",
                "where MLflow is; default: where the runs were tracked, MLFLOW_TRACKING_URI,"
                " mlflow.db in the root",
                value="URI",
            ),
            ROOT,
            JSON._replace(help="print one JSON object, with the reason why each other run is kept"),
            QUIET,
        ),
        ending="""\
At least one of the first four rules must be given. A registry that cannot be read ends it
before anything is deleted.
Exit code 0: done, or nothing to do; 2: wrong arguments; 75: MLflow does not answer, try again
later.

lightkit gc --keep-last 5 --keep-best 2 --max-size 50G --dry-run""",
        max_inputs=1,
        function="collect",
    ),
    Command(
        "reproduce",
        "train a run again and compare the two",
        usage=(
            "lightkit reproduce RUN [--anyway] [--root FOLDER] [--output json] [--quiet] [--trust]"
        ),
        about="""\
Train a run again, with its config and its seed, and compare the two: the metrics of each epoch,
and the weights of last.ckpt and best.ckpt, bit for bit. Before that, code (git commit,
lightkit, Python files), packages, data and hardware are compared with the run's records; if any
differs, nothing is trained and all differences are listed.""",
        inputs=(Input("RUN", "a run: its folder, its id, NAME, NAME/ID or latest"),),
        options=(
            RUN._replace(help="the same"),
            Option("--anyway", "train all the same, with a warning"),
            ROOT,
            JSON._replace(help="print the result as one JSON object"),
            Option("--quiet", "print nothing but warnings, errors and differences"),
            TRUST_CHECKPOINTS,
        ),
        ending="""\
The new run has a name of its own, NAME-reproduced, so that the job's newest run stays what it
was. If this command is interrupted, the same command goes on. LIGHTKIT_ variables do not count:
the run's config has their values.
Exit code 0: equal; 1: it differs, or has crashed; 2: the run cannot be reproduced here, or
wrong arguments; 3: only the data differs, or is missing; 75: interrupted, the same command goes
on.

lightkit reproduce flowers/latest""",
        max_inputs=1,
        input_choices=RUNS,
    ),
    Command(
        "notify-test",
        "send one message of each kind",
        usage="lightkit notify-test -c FILE... [--kind KIND]... [--key=value]...",
        about="""\
Send one message of each kind through every notifier of a config, such as callbacks.slack and
callbacks.webhook, and each request to its monitor (run.heartbeat_url), and wait for the answers.
The messages say that they are tests. Neither model nor data are built, and nothing is written.
What the events of a notifier leave out is not sent.""",
        options=(
            CONFIG,
            RUN._replace(help="a run, in the place of files"),
            Option(
                "--kind",
                "start, epoch, end, failure or gate only; several with commas",
                value="KIND",
                is_list=True,
                choices=("start", "epoch", "end", "failure", "gate"),
            ),
            Option("--quiet", "print only what did not arrive"),
        ),
        ending="""\
A monitor gets start, failure and end, in this order, so that it ends well. Each message is tried
once.
Exit code 0: all have arrived; 1: some have not; 2: the config is wrong, or has no receiver.

lightkit notify-test -c lightkit:flowers -c lightkit:notify/slack""",
        takes_config=True,
    ),
    Command(
        "tune",
        "measure which settings train fastest here",
        usage=(
            "lightkit tune -c FILE... [--output FILE] [--batch-size] [--learning-rate] [--budget"
            " SECONDS]\n                     [--key=value]..."
        ),
        about="""\
Measure how the config's model trains fastest on this machine, in short fits of the real model
on real batches, and write a layer with the settings that gain. Tried is what the config does
not fix, or leaves to auto: precision, memory_format, compile, fused, threads and num_workers,
on CUDA tf32 too. A setting is taken only if the losses of the first steps stay within a stated
tolerance of float32's.""",
        options=(
            CONFIG,
            OUTPUT_FILE._replace(help="the layer to write", default="tuned.yaml"),
            Option(
                "--batch-size",
                "find the largest batch that fits into memory, by"
                " Lightning's Tuner; taken if it gains",
            ),
            Option(
                "--learning-rate", "find a learning rate, by the range test of Lightning's Tuner"
            ),
            Option(
                "--budget",
                "try no other setting after so many seconds; default: as many as it takes",
                value="SECONDS",
                kind="number",
            ),
            JSON._replace(help="print one JSON object: all measurements, and what is chosen"),
            Option("--quiet", "print the layer only"),
            TRUST,
            RUN_HIDDEN,
        ),
        ending="""\
Nothing is trained and no run is left. Use what was found with another -c.
Exit code 0: measured; 1: the model raises an error; 2: the config is wrong; 3: the data is
wrong or missing.

lightkit tune -c lightkit:flowers
lightkit fit -c lightkit:flowers -c tuned.yaml""",
        takes_config=True,
    ),
    Command(
        "check",
        "list all errors of a config",
        usage=(
            "lightkit check [STAGE] -c FILE... [--full | --deep] [--no-hardware | --for gpu=N]\n"
            "                      [--key=value]... [key=value]..."
        ),
        about="""\
List all errors of a config, each with its place; build and write nothing. Every other command
does the same before it begins. Where lightkit's schema describes every class that the config
names, nothing is imported and the answer comes at once. Other classes, such as your own, are
imported, and torch with them: seconds.""",
        inputs=(
            Input(
                "STAGE",
                "the stage that the config is for: fit (the default), validate, test, predict",
            ),
        ),
        options=(
            RUN._replace(help="the config of a run, in the place of files"),
            Option("--full", "import all classes and parse the config with jsonargparse too"),
            Option(
                "--deep",
                "also build everything on one CPU and run the first batch of training, validation"
                " and test (of the stage, where it is another) from the config's data; find metrics"
                " that are monitored, or judged by the gate, and never logged; say the smallest"
                " drop that the gate's samples can show; and compare what checkpoints and the batch"
                " take with the disk and the memory that are free",
            ),
            Option(
                "--no-hardware", "do not ask whether this machine has the devices of the config"
            ),
            Option("--for", "check for a machine with N GPUs in place of this one", value="gpu=N"),
            EXPORT_FORMAT._replace(
                help=(
                    "check that the model and this machine have what a later"
                    " export to these formats needs"
                )
            ),
            TRUST,
            JSON._replace(
                help="print one JSON object: the errors with their places,"
                " and the findings of a deep check"
            ),
            JUNIT._replace(help="write each error as a test case of JUnit, which CI systems read"),
            Option("--quiet", "print errors and warnings only"),
            *_list_stage_options(),
        ),
        ending="""\
A deep check runs the config's own code, its callbacks included: what that code writes or sends,
it writes and sends. Nothing else is kept: no run folder, no checkpoint (one is written to the
temporary folder, to measure it), no record of a logger, no download. The values of
`accelerator` and `launch`, progress bars, profilers and plugins are left out, as are callbacks
that train by themselves.

Where GITHUB_STEP_SUMMARY is set, the errors are added to that file too.
Exit code 0: no errors; 2: errors.

lightkit check -c lightkit:flowers
lightkit check -c lightkit:flowers --deep""",
        takes_config=True,
        max_inputs=1,
        input_choices=STAGES,
        has_other_inputs=False,
    ),
    Command(
        "explain",
        "print which layer set a value, and what it replaced",
        usage="lightkit explain [STAGE] -c FILE... [--key=value]... [KEY]... [--output json]",
        about="""\
Say where a value comes from: what set it, and what that replaced, lowest layer first. Without
KEY, print the whole config as YAML with the place of each value in a comment.""",
        inputs=(
            Input(
                "KEY",
                "a dotted key: trainer.max_epochs, callbacks.early_stopping.patience, callbacks,"
                " model; or the end of one: max_epochs",
            ),
            Input(
                "STAGE",
                "the stage whose block in a file counts: fit (the"
                " default), validate, test, predict",
            ),
        ),
        options=(
            CONFIG,
            RUN._replace(help="the config of a run, with the other layers over it"),
            JSON,
            Option("--quiet", is_hidden=True),
        ),
        ending="""\
Exit code 0: explained; 2: there is no such key, or the config cannot be read.

lightkit explain -c lightkit:flowers trainer.max_epochs""",
        takes_config=True,
        max_inputs=None,
        input_choices=STAGES,
    ),
    Command(
        "diff",
        "print what differs between two runs or two configs",
        usage="lightkit diff A B [--root FOLDER] [--output json] [--exit-code]",
        about="""\
Print what differs between two configs: the keys that were changed, taken out (-) or added (+),
each value with its place. Of two runs also what differs in versions, commit, data, seed and
hardware, and in the last metrics.""",
        inputs=(
            Input(
                "A, B",
                "a config file, with what it extends; lightkit:NAME; or a run: a folder, an id,"
                " NAME, NAME/ID, latest",
            ),
        ),
        options=(
            ROOT,
            JSON,
            Option("--exit-code", "exit with 1 if anything differs"),
        ),
        ending="""\
A run has all values, a file some: compared with a run, a file has the defaults of its classes,
your own too, for the others. LIGHTKIT_ variables do not count.
Exit code 0: compared; 1: something differs, with --exit-code; 2: wrong arguments, or a config
that cannot be read.

lightkit diff latest mine.yaml""",
        max_inputs=None,
        input_choices=(FILES,),
    ),
    Command(
        "fetch",
        "download the data that a config names",
        usage="lightkit fetch -c FILE... [--data.KEY=value]...",
        about="""\
Download what the data module of a config needs, into the folder that the config names. A broken
download goes on where it stopped; a complete one is not repeated.""",
        options=(
            CONFIG,
            RUN._replace(help="the config of a run, in the place of files"),
            QUIET,
        ),
        takes_config=True,
    ),
    Command(
        "convert",
        "write a folder of photos as a Delta or Parquet table",
        usage=(
            "lightkit convert IMAGES TABLE [--format delta|parquet] [--partitions N]"
            " [--row-group-mb MB]"
        ),
        about="""\
Write a folder of photos as a table that lightkit.data.Table trains from. IMAGES has one folder
a class, or train/, val/ and test/ with one folder a class each. Each row is a photo: image (the
file's bytes as they are), label (the name of its class), split (train, val or test), path
(within IMAGES), width and height (of the upright image, in pixels). The split is that of the
folder, else decided by a hash of the content, just as lightkit.data.ImageFolder does. The order
is mixed, and decided by the photos alone. A row group holds rows of one split. Files, and the
row groups of a split, have equally many rows, within one.""",
        options=(
            Option(
                "--format",
                "delta or parquet; default: parquet for a TABLE that ends in .parquet, else delta",
                value="FORMAT",
                choices=("delta", "parquet"),
            ),
            _POSITIVE._replace(
                name="--partitions",
                help="write N files: the number of devices that train, or a multiple of it",
                default=1,
            ),
            Option(
                "--row-group-mb",
                "most that a row group holds, in MB (1e6 bytes); a larger photo counts as none",
                value="MB",
                default=32,
                kind="number",
            ),
            Option(
                "--overwrite",
                "replace a table of lightkit convert: Delta gets a new"
                " version, Parquet files are replaced",
            ),
            _SHARE._replace(
                name="--val-fraction",
                help="share of the photos for validation, where no validation folder is given",
                default=0.2,
            ),
            _SHARE._replace(
                name="--test-fraction",
                help="share of the photos for testing, where no splits are given",
                default=0.1,
            ),
            Option(
                "--on-bad-image",
                "skip: leave out what cannot be decoded, and list it; error: end with the list",
                value="WORD",
                default="skip",
                choices=("skip", "error"),
            ),
            _SHARE._replace(
                name="--max-bad-fraction",
                help="share of bad files from which on it is an error in either case",
                default=0.05,
            ),
            QUIET,
        ),
        ending="""\
TABLE is a folder that appears when it is complete; one that exists stays as it is without
--overwrite.
Exit code 0: written; 2: wrong arguments, or TABLE exists; 3: the photos are wrong, or the disk
is full; 75: another process is writing TABLE.

lightkit convert data/flower_photos data/flowers.delta --partitions 2""",
        max_inputs=2,
        input_choices=(FILES,),
    ),
    Command(
        "devices",
        "print what this machine has to train on",
        usage="lightkit devices [--output json]",
        about="""\
Print what this machine has to train on: cores and instruction sets, memory, CUDA devices, XLA
devices, what Horovod was built with, and versions. CUDA_VISIBLE_DEVICES and PJRT_DEVICE count.""",
        options=(JSON,),
    ),
    Command(
        "submit",
        "put a fit into the queue of a Slurm cluster",
        usage="lightkit submit -c FILE... [--dry-run] [--key=value]... [key=value]...",
        about="""\
Put lightkit fit with the same arguments into the queue of Slurm, one task for each process. A
job that is preempted, or reaches its time limit, saves, goes back into the queue and resumes.""",
        options=(
            Option("--dry-run", "print the batch script and do not submit it"),
            *_hide(FIT_OPTIONS),
        ),
        keys=(
            Input("--launch.nodes=N", "machines"),
            Input("--launch.processes=N", "processes on each machine; default: its devices"),
            Input("--launch.threads=N", "cores of each process"),
            Input(
                "--launch.slurm.OPTION=VALUE",
                "options of sbatch: partition, time, account, mem, ...",
            ),
        ),
        ending="""\
lightkit submit -c lightkit:flowers --launch.slurm.time=2:00:00""",
        takes_config=True,
        function="submit_fit",
    ),
    Command(
        "configs",
        "list, print or copy the packaged configs",
        usage=(
            "lightkit configs\n"
            "       lightkit configs show NAME\n"
            "       lightkit configs copy NAME [--output FILE] [--force]"
        ),
        about="""\
List the configs that come with lightkit, print one, or copy one to change it. A config names
them in `extends`, a command after `-c`.""",
        inputs=(Input("NAME", "such as accelerator/ddp"),),
        options=(
            OUTPUT_FILE._replace(
                help="where the copy goes; default: the name in this folder, such as ddp.yaml"
            ),
            Option("--force", "replace a file that exists"),
        ),
        ending="""\
lightkit fit -c lightkit:flowers -c lightkit:accelerator/ddp""",
        max_inputs=None,
        input_choices=("show", "copy"),
    ),
    Command(
        "init",
        "write a starter project, or a config for your data",
        usage="lightkit init [--template NAME]\n"
        "       lightkit init --data PATH [--text COLUMN] [--output FILE]",
        about="""\
Write a starter project into this folder. It asks nothing and overwrites nothing.""",
        options=(
            Option(
                "--template",
                "module: a config, a LightningModule and a data module, which train in"
                " seconds; image: a config for photos in photos/, one folder per class; ci: module,"
                " and workflows that check pull requests and retrain each night, with a gate; cron:"
                " module, and a crontab that retrains each night, with a gate",
                value="NAME",
                default="module",
                completes=TEMPLATES,
            ),
            Option(
                "--data",
                "look at images or texts in class folders (or in train/, val/, test/), at images"
                " and their masks, or at a table of images, numbers or texts (CSV, JSON lines,"
                " Parquet, Delta), and write a config for them, each"
                " setting with its reason as a comment",
                value="PATH",
                completes=(FILES,),
            ),
            Option(
                "--text",
                "column of a table with texts to learn from alone; default: the one column of texts"
                " of a table that has nothing else to learn from",
                value="COLUMN",
            ),
            Option(
                "--output",
                "name of that config; default: that of the data, such as photos.yaml",
                value="FILE",
                completes=(FILES,),
            ),
        ),
        ending="""\
lightkit init --data photos
lightkit fit -c photos.yaml""",
    ),
    Command(
        "schema",
        "print the JSON Schema of a config file, for editors",
        usage="lightkit schema [-o FILE] [--summary]",
        about="""\
Print the JSON Schema of a config file, by which an editor completes keys and class names, shows
what they mean, and marks what is wrong. Classes of your own are taken as they are.""",
        options=(
            OUTPUT_FILE._replace(help="write it there"),
            Option(
                "--summary", "print that of summary.json instead, the file with the end of a run"
            ),
        ),
        ending="""\
With an editor that has the YAML language server, such as VS Code with Red Hat's YAML extension:

  lightkit schema -o lightkit.schema.json

and as first line of a config:

  # yaml-language-server: $schema=lightkit.schema.json""",
    ),
    Command(
        "upgrade",
        "list the keys of a Lightning 1.x config in today's words",
        usage="lightkit upgrade FILE",
        about="""\
List the keys of a Lightning 1.x config with their spelling of today: gpus and tpu_cores,
strategies, precision, arguments that the trainer no longer has or that stand outside of it,
paths and arguments of Lightning's classes. Each change has its line and its reason, as in a
diff. The file is not written. A key without an equivalent is an error that says what to do
instead. The exit code is 6 where nothing is to be changed.""",
        ending="""\
lightkit upgrade old.yaml""",
        max_inputs=1,
        input_choices=(FILES,),
    ),
    Command(
        "completion",
        "print the script that completes words in bash or zsh",
        usage="lightkit completion SHELL",
        about="""\
Print the script by which a shell completes commands, options, keys, classes and files.""",
        inputs=(
            Input(
                "bash", 'put into ~/.bashrc:                     eval "$(lightkit completion bash)"'
            ),
            Input(
                "zsh", 'put into ~/.zshrc, after its compinit:  eval "$(lightkit completion zsh)"'
            ),
        ),
        max_inputs=None,
        input_choices=("bash", "zsh"),
    ),
)
COMMANDS: Mapping[str, Command] = {
    command.name: command for command in (*_STAGE_COMMANDS, *_OTHER_COMMANDS)
}


# -- the command line ------------------------------------------------------------------------------

GENERAL = Command(
    "",
    options=(
        CONFIG,
        Option("--key=value", "one value, such as --trainer.max_epochs=3; wins over files"),
        RUN._replace(help="validate, test, predict, export: a run; needs no -c"),
        QUIET,
        EVENTS,
        PRINT_CONFIG,
        Option("--traceback", "after an error in your code, show the libraries' frames too"),
        Option("--version", "print the version and stop", aliases=("-V",)),
        Option(
            "--help",
            "print this, or after a command the keys that it takes",
            aliases=("-h", "help"),
        ),
        CKPT_PATH_HIDDEN,
    ),
)
"""Options that may stand before a command."""
_TRACEBACK = "--traceback"
"""The only option that may stand anywhere."""
_OTHER_WORDS = {"train": "fit", "eval": "test", "evaluate": "test", "version": "--version"}
"""Words of other tools, each with what it is here."""


def parse(words: Sequence[str]) -> Invocation:
    """Parse a command line of lightkit; what is wrong after the command is in `Invocation.errors`.

    Returns:
        The invocation. Its command is empty where help or the version of lightkit itself is asked
        for.

    Raises:
        ConfigError: If there is no such command.
    """
    if words[:1] == [RANK]:
        return Invocation.load(words[1])
    shown = [word for word in words if word != _TRACEBACK]
    has_traceback = len(shown) < len(words)
    if _has_help_first(shown):
        shown = [shown[1], "--help", *shown[2:]]

    at = _find_command(shown)
    general = _parse_general(shown, is_alone=at == len(shown))
    if general is not None:
        return general
    if at == len(shown):
        raise ConfigError(
            f"No command among {' '.join(shown)!r}{_near_option(shown)} {_list_commands()}"
        )
    name = shown[at]
    if name not in COMMANDS:
        hint = (
            f"; did you mean {_OTHER_WORDS[name]!r}?"
            if name in _OTHER_WORDS
            else near(name, COMMANDS)
        )
        raise ConfigError(f"{name!r} is not a command{hint}\n{_list_commands()}")
    invocation = parse_command(COMMANDS[name], [*shown[:at], *shown[at + 1 :]])
    return invocation.with_options(traceback=True) if has_traceback else invocation


def _parse_general(words: Sequence[str], *, is_alone: bool) -> Invocation | None:
    """Parse the help and the version of lightkit itself; return None for other words."""
    general = _list_general(words if is_alone else words[:1])
    if not words or "help" in general:
        return Invocation("", tuple(words), topics=())
    if ["version"] in (_list_general(words[:1]), _list_general(words[-1:])):  # also after a command
        return Invocation("", tuple(words), options={"version": True})
    return None


def _has_help_first(words: Sequence[str]) -> bool:
    """Return whether the help stands before the command that it is asked of, as in ``help fit``."""
    return (
        words[:1] in (["-h"], ["--help"], ["help"])
        and len(words) > 1
        and not words[1].startswith("-")
    )


def _find_command(words: Sequence[str]) -> int:
    """Find the first word that is no option, nor the value of one."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option = GENERAL.find_option(words[at])
        takes_value = option is not None and not option.is_switch and not option.is_optional
        at += 2 if takes_value else 1
    return min(at, len(words))


def _list_general(words: Sequence[str]) -> list[str]:
    """List the general options among words."""
    found = [GENERAL.find_option(word) for word in words]
    return [option.key for option in found if option is not None]


def _near_option(words: Sequence[str]) -> str:
    """Return the hint for the first word that looks like an option and is none."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and GENERAL.find_option(name) is None:
            hint = near(name, GENERAL.option_names, most=1)
            return hint or "."
    return "."


def _list_commands() -> str:
    return f"Commands: {', '.join(COMMANDS)}."
