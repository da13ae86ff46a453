"""`accel-rl doctor`: a report on this machine and, with --gpu, whether every GPU path does what the CPU does.

command.py is the command. The report: survey.py makes it of the probes in machine.py, software.py and gpus.py, and of
the self-test in trials.py. The checks of a GPU: checks/ holds them, a file for each group; process.py runs them.
Importing the package imports no torch.
"""
