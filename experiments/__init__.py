"""One file per figure or table: grid, claims and drawing."""
