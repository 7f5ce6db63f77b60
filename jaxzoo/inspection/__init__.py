"""Inspection of models: capture and replacement of inner values, and pictures of recall."""

from jaxzoo.inspection.capture import capture, laid_open, shown

__all__ = ["capture", "laid_open", "shown"]
