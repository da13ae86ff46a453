"""The command `accel-rl tune`: which workers and threads, or which agents, predictors and trainers, train fastest here?

tuning.py is the whole of it. points.py: what is searched; search.py: how; contestant.py: a training that takes turns;
knock_out.py: the turns, which benchmarks take, too; summary.py: the table and the file of settings. Importing the
package imports no torch.
"""
