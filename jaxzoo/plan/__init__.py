"""Plan of a run for absent accelerators, by ahead-of-time compilation of its train step."""
