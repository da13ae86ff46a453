"""The command `accel-rl tune`: which numbers of workers and threads train fastest here?

tuning.py is the whole of it. points.py: what is searched; search.py: how. Importing the package imports no torch.
"""
