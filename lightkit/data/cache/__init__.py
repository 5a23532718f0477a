"""Images that are decoded once and kept for later epochs."""
