"""What runs in a process without lightkit: an exported file, its runtime and numpy."""
