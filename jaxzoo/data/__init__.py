"""Data for the trainer: `base` is its contract, the other modules are text from files."""
