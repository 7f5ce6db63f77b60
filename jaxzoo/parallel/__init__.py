"""Meshes, sharding rules, the sequence axis, and runs of several processes."""
