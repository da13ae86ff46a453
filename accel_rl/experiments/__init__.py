"""Grids of runs: what an experiment's file says, the scheduler that runs it, and its report."""
