"""Data for the trainer: `base` says what it asks of any data; the other modules make such data of text files."""
