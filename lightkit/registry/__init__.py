"""Models under a name: registered in MLflow, with the way back to their run."""
