"""Data for the trainer: `base` is the interface; the other modules implement it for text and DNA."""
