"""The benchmarks of `accel-rl bench`: contestants take turns in one run, since only ratios count.

timing.py has turns and their statistics, training.py a training that takes turns, sampling.py the benchmark of the
paper's figure. Importing the package imports no torch. The repository's folder benchmarks/ has programs for developers.
"""
