"""The engine for the paper's multilayer perceptrons on the CPU: written-out gradient, compiled loops, Adam.

Needs Numba, which nothing outside of this folder imports. What it learns is what the autograd engine learns, up to
rounding (tests/engines/test_law.py); only the time differs.
"""
