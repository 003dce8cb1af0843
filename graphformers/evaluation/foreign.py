"""The former name of `external`, for callers that still use it."""

from graphformers.evaluation.external import read_vectors

__all__ = ["read_vectors"]
