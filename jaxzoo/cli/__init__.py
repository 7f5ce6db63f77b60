"""The commands: `runner` runs them all alike, every other module that has a `main` is one of them."""
