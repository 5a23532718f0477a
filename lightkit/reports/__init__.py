"""Reports of runs, made from the files of their folders alone. No torch."""
