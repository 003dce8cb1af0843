"""Vectors for graphs of texts that know both the text and its neighbourhood."""

__version__ = "0.1.0"
