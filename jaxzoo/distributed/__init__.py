"""Several processes that make one run: how they meet, agree, and end together."""
