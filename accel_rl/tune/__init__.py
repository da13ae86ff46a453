"""The command `accel-rl tune`: finds the numbers of workers and threads that train fastest on this machine.

tuning.py is the entry, points.py has the search space, search.py the search. The package does not import torch.
"""
