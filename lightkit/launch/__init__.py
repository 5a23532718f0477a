"""From one process to many: which rank this process is, and how the others are started, watched and ended.

::

    rank = this_rank(os.environ)            # None: no launcher has started this process
    plan = plan_launch(settings, ...)       # None: this process is the only one
    result = Supervisor(plan, words, ...).run()

- `LaunchSettings`, `read_settings`: the config's `launch` block. `plan_launch`: the launch that it results in.
- `Supervisor` starts all ranks through an engine, ends them together, and returns a `LaunchResult`.
- `RankContext` is one rank; ranks and supervisor exchange their status in a folder.
- `Watchdog`, `heartbeat`, `waiting`: end a process that hangs, but not one that works or waits for others.

Free of torch, so that a process that only starts others costs nothing.
"""

from lightkit.launch.plan import ENGINES, LaunchSettings, Plan, check_engine, plan_launch, read_settings
from lightkit.launch.ranks import LAUNCH, Rank, this_rank
from lightkit.launch.supervisor import LaunchResult, Supervisor
from lightkit.launch.watchdog import (
    STALLED,
    Heartbeat,
    Hung,
    Stall,
    Watchdog,
    WatchdogSettings,
    heartbeat,
    read_watchdog,
    waiting,
)
from lightkit.launch.worker import DATA_CHANGED, INHERITED, RankContext, RankStatus, join_launch

__all__ = [
    "DATA_CHANGED",
    "ENGINES",
    "INHERITED",
    "LAUNCH",
    "STALLED",
    "Heartbeat",
    "Hung",
    "LaunchResult",
    "LaunchSettings",
    "Plan",
    "Rank",
    "RankContext",
    "RankStatus",
    "Stall",
    "Supervisor",
    "Watchdog",
    "WatchdogSettings",
    "check_engine",
    "heartbeat",
    "join_launch",
    "plan_launch",
    "read_settings",
    "read_watchdog",
    "this_rank",
    "waiting",
]
