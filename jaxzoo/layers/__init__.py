"""Bricks that mixers and models share."""
