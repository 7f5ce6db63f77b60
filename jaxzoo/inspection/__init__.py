"""A model looked into: values of its layers captured or replaced, and pictures of what it recalls."""

from jaxzoo.inspection.capture import capture, laid_open, shown

__all__ = ["capture", "laid_open", "shown"]
