"""`lightkit tune`: the settings of `accelerator` measured on the real model, all of them, in a table."""

from __future__ import annotations

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.errors import ConfigError

__all__ = ["tune"]

_USAGE = "usage: lightkit tune -c FILE... [--json] [--budget SECONDS] [--key=value]..."
_HELP = f"""\
{_USAGE}

Measure how the config's model trains fastest on this machine, and train nothing. Each setting of `accelerator` that is
auto in the config is tried, on real batches; where none is, all are that the config does not fix: precision,
memory_format, compile, fused, threads and num_workers, on CUDA tf32 too. A setting is taken only if the losses of the
first steps stay within a stated tolerance of float32's, and with trainer.deterministic only if they repeat.

  -c FILE           a layer of the config
  --budget SECONDS  try nothing more after so many seconds; default: as many as it takes
  --json            print one JSON object: all measurements, and what is chosen
  --quiet           print the lines for a config only
  --trust           let checkpoints and weights run code as they load

Printed are all measurements, why a setting was refused, and the lines of YAML that fix what was chosen. `lightkit fit`
then takes what was found, if its config has the same autos or fewer of the settings for speed, and fixes the rest as it
was measured. It is kept below run.root, in .tuning, for this model, data, code, machine and these versions: a file for
speed, for batch_size and for learning_rate. Delete them to forget; lightkit tune itself measures all anew. Where
--budget has left something out, a fit with more time measures again. No run is left. Interrupted, it keeps nothing of
the search that was under way.
Exit code 0: measured; 1: the model raises an error; 2: the config is wrong; 3: the data is wrong or missing.

lightkit tune -c configs/flowers.yaml
lightkit tune -c configs/flowers.yaml -c configs/accelerator/auto.yaml --json
"""
_OWN: dict[str, Takes] = {"--budget": "value", "--json": "switch"}
_CONFIG: dict[str, Takes] = {"-c": "value", "--config": "value", "--quiet": "switch", "--trust": "switch"}

_OF_OTHERS = {
    "--print_config": "lightkit fit has it",
    "--output": "--json prints all measurements as JSON",
    "--run": "-c RUN/config.yaml names the config of a run",
}
"""Options of `lightkit fit` and the like, and what there is here in their place."""


def tune(words: list[str]) -> int:
    """Measure, print what was found, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If the arguments or the config are wrong.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    for option in (word.partition("=")[0] for word in words):
        if option in _OF_OTHERS:
            raise ConfigError(f"tune: {option} is no option of it; {_OF_OTHERS[option]}\n{_USAGE}")
    line = parse_command_line("tune", words, usage=_USAGE, own=_OWN, config=_CONFIG)
    if line.positionals:
        raise ConfigError(f"tune: unexpected argument {line.positionals[0]!r}\n{_USAGE}")
    budget_s = _seconds(line.options.get("--budget"))
    from lightkit.cli.tuning import tuned_config  # here: it may load torch

    return tuned_config([*line.config_words], budget_s=budget_s, is_json="--json" in line.options)


def _seconds(said: str | None) -> float | None:
    if said is None:
        return None
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"tune: --budget: expected a number of seconds above 0, got {said!r}\n{_USAGE}")
    return seconds
