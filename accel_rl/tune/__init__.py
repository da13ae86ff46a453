"""The command `accel-rl tune`: finds the workers and threads, or the numbers of agents, predictors and trainers, that
train fastest on this machine.

tuning.py is the entry, points.py has the search space, search.py the search. Importing the package imports no torch.
"""
