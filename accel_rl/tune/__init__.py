"""The command `accel-rl tune`: which workers and threads, or which agents, predictors and trainers, train fastest here?

tuning.py is the whole of it. points.py: what is searched; search.py: how. Importing the package imports no torch.
"""
