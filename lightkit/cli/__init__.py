"""What the commands share, and the only package that knows LightningCLI."""
