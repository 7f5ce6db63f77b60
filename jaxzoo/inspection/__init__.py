"""A model looked into: values of its layers captured or replaced, and pictures of what it recalls."""

from jaxzoo.inspection.capture import capture as capture, laid_open as laid_open, shown as shown
