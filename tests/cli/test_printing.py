"""`--print_config` prints what can be fed back: a property over generated layers."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from lightkit.errors import LightkitError
from lightkit.runs.signals import SignalWatch
from tests.cli.conftest import House

SECRET = "sesame-1234"


def table(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with any of these keys."""
    return st.fixed_dictionaries({}, optional=values)


def spec(class_path: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Classes with any of these arguments."""
    return st.fixed_dictionaries({"class_path": st.just(class_path)}, optional={"init_args": table(**arguments)})


TEXTS = st.sampled_from(
    ["net", "${oc.env:GIVEN}", "x-${oc.env:GIVEN}", "${oc.env:ABSENT,spare}", r"\${literal}", "1e3", "yes", "", "a: b"]
)
TAGS = st.lists(st.sampled_from(["a", "b", "${oc.env:GIVEN}"]), max_size=2)
NET = spec(
    "my_models.Net",
    hidden=st.sampled_from([2, 8, "${trainer.max_epochs}"]),
    name=TEXTS,
    tags=TAGS,
)
MODEL = st.one_of(
    NET,
    st.just({"class_path": "${oc.env:CLASS}"}),
    spec("my_models.Wide", width=st.integers(1, 9)),
    st.just("my_models.Net"),
)
MODEL_MORE = st.one_of(
    MODEL,
    st.fixed_dictionaries({"init_args": st.fixed_dictionaries({"tags+": TAGS})}),
)
EARLY = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"monitor": st.just("val/loss")}, optional={"patience": st.integers(1, 9), "mode": st.just("min")}
    ),
)
OWN = st.one_of(st.none(), spec("pytorch_lightning.callbacks.Timer", interval=st.sampled_from(["step", "epoch"])))
TIMER = {"class_path": "pytorch_lightning.callbacks.Timer", "init_args": {"interval": "step"}}
CALLBACKS = table(
    early_stopping=EARLY,
    lr_monitor=st.sampled_from([None, {}, {"logging_interval": "step"}]),
    mine=OWN,
    checkpoint=st.sampled_from([None, {}]),
)
LOGGERS = table(csv=st.sampled_from([None, {}]), tensorboard=st.sampled_from([None, {}]))
TRAINER = table(
    max_epochs=st.integers(1, 5),
    gradient_clip_val=st.sampled_from([None, 1, 0.5, 1e-7]),
    limit_train_batches=st.sampled_from([2, 0.5, 1.0]),
    benchmark=st.booleans(),
    profiler=st.sampled_from([None, "simple"]),
    max_time=st.sampled_from([None, "00:12:00:00", {"hours": 2}]),
    gpus=st.sampled_from([0, None]),
    devices=st.sampled_from([1, "auto"]),
    callbacks=st.sampled_from([None, [TIMER]]),
) | st.just({"callbacks+": [TIMER]})
HARDWARE = st.sampled_from(
    [
        *("cpu", {"kind": "cpu"}, {"num_processes": 2}, {"precision": "bf16"}, {"strategy": "ddp"}),
        {"precision": "auto", "memory_format": "channels_last", "threads": 2},
        {"compile": "auto", "fused": True, "learning_rate": 0.5},
        {"threads": "auto", "precision": None, "learning_rate": "auto"},
    ]
)
OPTIMIZER = st.one_of(
    st.just("Adam"), spec("torch.optim.Adam", lr=st.sampled_from([1e-3, 0.1])), spec("SGD", lr=st.just(1))
)
FILE = table(
    trainer=TRAINER,
    model=MODEL_MORE,
    callbacks=CALLBACKS,
    logger=LOGGERS,
    accelerator=HARDWARE,
    optimizer=OPTIMIZER,
    data=spec("my_models.Points", count=st.integers(4, 8), note=TEXTS),
    seed_everything=st.sampled_from([3, False]),
    run=table(name=st.just("job"), resume=st.just("never")),
)
BASE = st.fixed_dictionaries(
    {
        "seed_everything": st.just(7),
        "model": NET,
        "data": st.just({"class_path": "my_models.Points"}),
        "trainer": st.fixed_dictionaries({"max_epochs": st.integers(1, 3)}),
    }
)
FLAGS = st.lists(
    st.sampled_from(
        [
            "--trainer.max_epochs=4",
            "trainer.limit_val_batches=0.5",
            "--model.init_args.name=123",
            "--callbacks.mine=pytorch_lightning.callbacks.Timer",
            "--callbacks.lr_monitor=null",
            "--callbacks.early_stopping={monitor: val/loss, patience: 2}",
            "--model.tags+=c",
            "--logger.csv={}",
            "--trainer.accelerator=cpu",
            "--optimizer=SGD",
            "--model={init_args: {name: flagged}}",
            "--trainer.gradient_clip_val=1e-3",
            "--trainer.logger=false",
        ]
    ),
    max_size=3,
    unique=True,
)
VARIABLES = table(
    LIGHTKIT_TRAINER__MAX_EPOCHS=st.just("2"),
    LIGHTKIT_TRAINER__LOG_EVERY_N_STEPS=st.just("1"),
    LIGHTKIT_CALLBACKS__LR_MONITOR__LOGGING_INTERVAL=st.just("epoch"),
    LIGHTKIT_DATA__BATCH_SIZE=st.just("2"),
)


class Printing:
    """Resolves command lines as `lightkit fit --print_config` does, with one parser for all of them."""

    def __init__(self) -> None:
        from lightkit.cli.lightning import LightkitCLI  # here, because it loads torch and Lightning

        self._class = LightkitCLI
        self._cli: Any = None

    def __call__(self, *words: str) -> tuple[str, dict[str, Any]]:
        """Give what is printed, and what the parser made of the config."""
        from lightkit.cli.scripted import ConfigPrinted
        from lightkit.cli.session import open_session

        session = open_session("fit", [*words, "--print_config"], SignalWatch())
        printed = io.StringIO()
        with redirect_stdout(printed), pytest.raises(ConfigPrinted):
            self._print(session)
        parser = self._cli._subcommand_parsers["fit"]
        parsed: dict[str, Any] = yaml.safe_load(parser.dump(self._cli.config["fit"], format="json"))
        return printed.getvalue(), parsed

    def _print(self, session: Any) -> None:
        if self._cli is None:
            self._cli = self._class.__new__(self._class)
            self._cli.__init__(session=session)
        self._cli.session = session
        self._cli.parse_arguments(self._cli.parser, None)
        self._cli._begin()


@pytest.fixture(scope="module")
def printing() -> Printing:
    return Printing()


def write(folder: Path, base: dict[str, Any], files: list[dict[str, Any]]) -> None:
    """Write layers, of which the first two are joined by ``extends``."""
    layers = [base, *files]
    layers[1] = {"extends": "layer0", **layers[1]}
    for number, layer in enumerate(layers):
        (folder / f"layer{number}.yaml").write_text(yaml.safe_dump(layer, sort_keys=False), encoding="utf-8")


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(base=BASE, files=st.lists(FILE, min_size=1, max_size=3), flags=FLAGS, variables=VARIABLES)
def test_a_printed_config_fed_back_is_the_same_config(
    base: dict[str, Any],
    files: list[dict[str, Any]],
    flags: list[str],
    variables: dict[str, str],
    house: House,
    printing: Printing,
) -> None:
    write(house.folder, base, files)
    words = [word for number in range(1, len(files) + 1) for word in ("-c", f"layer{number}.yaml")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(house.folder))
        patch.setenv("GIVEN", SECRET)
        patch.setenv("CLASS", "my_models.Net")
        patch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
        with pytest.MonkeyPatch.context() as layered:
            for name, value in variables.items():
                layered.setenv(name, value)
            try:
                printed, parsed = printing(*words, *flags)
            except LightkitError:  # layers that contradict each other
                reject()
        (house.folder / "printed.yaml").write_text(printed, encoding="utf-8")
        again, parsed_again = printing("-c", "printed.yaml")
    assert again == printed
    assert parsed_again == parsed
    assert SECRET not in printed


def test_a_default_that_is_a_word_of_an_enumeration_is_printed(house: House) -> None:
    printed = house.resolved("-c", "small.yaml", "callbacks.timer={}")
    assert printed["callbacks"]["timer"]["init_args"] == {"duration": None, "interval": "step", "verbose": True}
