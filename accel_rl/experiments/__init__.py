"""Experiments: grids of runs and sweeps, the scheduler that trains them, and their report."""
