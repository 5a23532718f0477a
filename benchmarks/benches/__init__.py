"""What `benchmarks/bench` can measure, a module each."""
