"""What `accel-rl doctor` tells of this machine and, with --gpu, whether every GPU path does what the CPU does.

command.py is the command, checks/ holds the checks, a file for each group. Importing the package imports no torch.
"""
