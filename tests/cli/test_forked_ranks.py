"""The process that forks the ranks of a machine: their variables, their ends, and its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lightkit.cli.command_table import parse
from lightkit.cli.stage_runner import make_plan, open_stage_config
from lightkit.launch.plan import LaunchSettings, plan_launch

# No torch, and in the place of lightkit the code of a test.
FORKING = """\
import sys, types
sys.modules["lightkit.cli.preload"] = types.ModuleType("preload")
from lightkit.cli import forked_ranks
code = compile(sys.argv[1], "rank", "exec")
forked_ranks.runpy = types.SimpleNamespace(run_module=lambda *_, **__: exec(code, {}))
sys.exit(forked_ranks.run_ranks(2, ["fit", "-c", "job.yaml"]))
"""
IMPORTS = """\
import json, os, signal, sys, time
from pathlib import Path
rank = os.environ["LOCAL_RANK"]
"""
SHOW = """
import numpy, random, torch
names = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
shown = {name: os.environ[name] for name in names}
drawn = [numpy.random.rand(), random.random(), torch.rand(()).item()]
Path(rank).write_text(json.dumps([shown, drawn, sys.argv]))
"""
END_BY_SIGNAL = """
def end(signum, frame):
    Path(f"got-{rank}").write_text(str(int(signum)))
    sys.exit(75)
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, end)
Path(rank).touch()
time.sleep(60)
"""


def start(folder: Path, code: str, *, imports: str = "") -> subprocess.Popen[bytes]:
    """Start a process that imports and forks two ranks, each of which runs the code."""
    words = [sys.executable, "-c", imports + FORKING, IMPORTS + code]
    return subprocess.Popen(words, cwd=folder, start_new_session=True)


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_there():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_ranks_have_the_variables_of_lightnings_launcher_and_random_numbers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert start(tmp_path, SHOW, imports="import numpy, torch\n").wait(60) == 0
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    port = int(first[0].pop("MASTER_PORT"))
    assert 1024 < port < 65536
    assert second[0].pop("MASTER_PORT") == str(port)
    assert first[0] == {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0"}
    assert second[0] == first[0]
    assert len({*first[1], *second[1]}) == 6
    assert first[2] == second[2] == ["lightkit", "fit", "-c", "job.yaml"]


def test_a_port_of_the_users_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "31234")
    assert start(tmp_path, SHOW).wait(60) == 0
    assert json.loads((tmp_path / "1").read_text())[0]["MASTER_PORT"] == "31234"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit(3 if rank == '1' else 0)", 3),
        ("sys.exit(None if rank == '1' else 'a text')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL if rank == '1' else 0)", 137),
        ("raise ValueError(rank)", 1),
    ],
    ids=["code", "text", "signal", "exception"],
)
def test_the_code_is_that_of_a_rank_that_has_failed(
    code: str, expected: int, tmp_path: Path
) -> None:
    assert start(tmp_path, code).wait(60) == expected


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_comes_to_all_ranks(signum: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path, END_BY_SIGNAL)
    wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    process.send_signal(signum)
    assert process.wait(60) == 75
    found = [(tmp_path / f"got-{rank}").read_text() for rank in "01"]
    assert found == [str(int(signum))] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="a process gets the end of its parent on Linux")
def test_ranks_whose_common_process_is_killed_are_asked_to_end(tmp_path: Path) -> None:
    process = start(tmp_path, END_BY_SIGNAL)
    wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    wait_for(lambda: all((tmp_path / f"got-{rank}").exists() for rank in "01"))


def test_a_signal_while_torch_is_imported_ends_the_process_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "lightkit_preload.py"
    package.write_text("import time, pathlib\npathlib.Path('begun').touch()\ntime.sleep(60)\n")
    program = FORKING.replace('types.ModuleType("preload")', "None").replace(
        "from lightkit.cli import forked_ranks",
        "from lightkit.cli import forked_ranks\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'lightkit.cli.preload':\n"
        "            import importlib.util\n"
        "            return importlib.util.spec_from_file_location(name, 'lightkit_preload.py')\n"
        "del sys.modules['lightkit.cli.preload']\n"
        "sys.meta_path.insert(0, Finder())",
    )
    process = subprocess.Popen([sys.executable, "-c", program, ""], cwd=tmp_path)
    wait_for((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_broken_package_that_a_training_may_need_later_stops_no_launch(tmp_path: Path) -> None:
    broken = "raise ValueError('numpy.dtype size changed')\n"
    (tmp_path / "omegaconf.py").write_text(broken, encoding="utf-8")
    program = "import lightkit.cli.preload, os; os._exit(0)"
    assert (
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 0
    )


@pytest.mark.parametrize(
    ("engine", "strategy", "can_fork", "forks"),
    [
        ("local", "ddp", True, True),
        ("local", "ddp", False, False),
        ("torchrun", "ddp", True, False),
        ("horovod", "horovod", True, False),
    ],
    ids=["CPUs", "GPUs", "torchrun", "horovod"],
)
def test_ranks_of_lightnings_own_launcher_are_forked_on_cpus(
    engine: str, strategy: str, can_fork: bool, forks: bool
) -> None:
    settings = LaunchSettings(engine=engine, processes=2)  # type: ignore[arg-type]
    plan = plan_launch(settings, strategy=strategy, processes=2, can_fork=can_fork)
    assert plan is not None
    assert plan.forks == forks


@pytest.mark.parametrize(
    ("keys", "forks"),
    [
        ({"accelerator": "cpu"}, True),
        ({"accelerator": "cpu", "strategy": "ddp_find_unused_parameters_true"}, True),
        ({"accelerator": "cpu", "plugins": [{"class_path": "AsyncCheckpointIO"}]}, False),
        ({"accelerator": "cpu", "strategy": {"class_path": "DDPStrategy"}}, False),
    ],
    ids=["cpu", "kind of ddp", "plugin", "strategy of the user's"],
)
def test_ranks_are_not_forked_where_a_class_of_the_config_may_start_them(
    keys: Mapping[str, object], forks: bool, tmp_path: Path
) -> None:
    sections = {"trainer": {"devices": 2, **keys}, "model": "Regressor", "data": "Temperatures"}
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(sections), encoding="utf-8")
    plan = make_plan(open_stage_config(parse(["fit", "-c", str(config)])))
    assert (plan is not None and plan.forks) == forks
