"""The commands: each module with a `main` is one, and `runner` runs it."""
