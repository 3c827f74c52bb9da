"""Scores of a model on labelled data."""
