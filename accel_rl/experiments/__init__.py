"""Experiments: grids of runs and sweeps, what trains them, and their report."""
