"""What all tests start from."""

from __future__ import annotations

import signal

# nohup, or a shell in the background, has programs ignore what some tests send to those that they start.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
