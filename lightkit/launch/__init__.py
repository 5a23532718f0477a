"""From one process to many: which rank this process is, and who starts the others.

::

    rank = this_rank(os.environ)            # None: no launcher has started this process
    plan = plan_launch(settings, ...)       # None: one process is all
    verdict = Supervisor(plan, words, ...).run()

- `LaunchSettings`, `read_settings`: the config's `launch` block. `plan_launch`: what it comes to.
- `Supervisor` starts all ranks through an engine, ends them together, and says which one has failed (`judge`).
- `Board`: the folder through which ranks and supervisor tell each other how they stand.
- `Watchdog`, `heartbeat`, `waiting`: a process that hangs is told from one that works or waits for it, and ended.
- `WatchdogSettings`, `read_watchdog`: the config's `watchdog` block.

Apart, and without torch, so that the process that only starts others costs nothing.
"""

from lightkit.launch.blame import Verdict, judge
from lightkit.launch.board import Board, Standing
from lightkit.launch.heartbeat import Heartbeat, heartbeat, waiting
from lightkit.launch.output import redirect, writer
from lightkit.launch.plan import ENGINES, LaunchSettings, Plan, check_engine, plan_launch, read_settings
from lightkit.launch.ranks import ATTEMPT, ENGINE, LAUNCH, PREEMPTED, Rank, this_rank
from lightkit.launch.supervisor import Supervisor
from lightkit.launch.watchdog import STALLED, Hung, Stall, Watchdog, WatchdogSettings, read_watchdog

__all__ = [
    "ATTEMPT",
    "ENGINE",
    "ENGINES",
    "LAUNCH",
    "PREEMPTED",
    "STALLED",
    "Board",
    "Heartbeat",
    "Hung",
    "LaunchSettings",
    "Plan",
    "Rank",
    "Stall",
    "Standing",
    "Supervisor",
    "Verdict",
    "Watchdog",
    "WatchdogSettings",
    "check_engine",
    "heartbeat",
    "judge",
    "plan_launch",
    "read_settings",
    "read_watchdog",
    "redirect",
    "this_rank",
    "waiting",
    "writer",
]
