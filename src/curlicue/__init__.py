"""Learns clusters and embeddings from an unlabelled, shifting stream of data, and does not forget."""

__version__ = "0.1.0"
