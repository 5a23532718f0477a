"""How a model is computed fastest on this machine: candidates, measurements, a choice, and what applies it."""
