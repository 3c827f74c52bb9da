"""Runs that can be repeated."""
