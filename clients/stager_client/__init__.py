"""Thin readers of staged data sets. torch and TensorFlow load only in their own modules."""

from stager_client.samples import StagedSamples

__all__ = ["StagedSamples"]
