"""Learners: when to grow, what to rehearse, what to remember."""
