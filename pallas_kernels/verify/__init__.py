"""First contact with a device: every kernel against float64, each case in a process of its own."""
