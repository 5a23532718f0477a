"""What `scripts/bench` can measure, a module each."""
