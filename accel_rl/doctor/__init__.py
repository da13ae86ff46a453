"""`accel-rl doctor`: a report on this machine or, with --gpu, whether the GPU does what the CPU does.

command.py is the command. survey.py makes the report of the probes in machine.py, software.py and gpus.py, and of
self_test.py. gpu_check.py compares a GPU with the CPU. Importing the package imports no torch.
"""
