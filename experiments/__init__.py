"""One file a figure or table: its grid, its result, its picture."""
