"""`accel-rl doctor`: a report on this machine or, with --gpu, a comparison of its GPU with its CPU.

command.py is the command. survey.py makes the report from the probes in machine.py, software.py and gpus.py, and from
self_test.py. gpu_check.py compares a GPU with the CPU. Importing the package does not import torch.
"""
