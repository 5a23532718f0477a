"""From one process to many.

Which rank this process is, and how the others are started, watched and ended.

::

    rank = this_rank(os.environ)            # None: no launcher has started this process
    plan = plan_launch(settings, ...)       # None: this process is the only one
    result = Supervisor(plan, words, ...).run()

- `plan`: the config's `launch` block, and the launch that it results in.
- `supervisor` starts all ranks through an engine, ends them together, and returns a `LaunchResult`.
- `worker` is one rank; ranks and supervisor exchange their status in a folder.
- `watchdog` ends a process that hangs, but not one that works or waits for others.

Free of torch, so that a process that only starts others costs nothing.
"""
