"""Tests of the model readers."""
