"""`accel-rl doctor`: a report on this machine or, with --gpu, whether the GPU does what the CPU does.

command.py is the command. The report: survey.py makes it of the probes in machine.py, software.py and gpus.py, and of
the self-test in trials.py, which process.py starts. gpu_check.py is the comparison of a GPU with the CPU. Importing the
package imports no torch.
"""
