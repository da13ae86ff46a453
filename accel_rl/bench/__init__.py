"""The benchmarks of `accel-rl bench`: contestants take turns in one run, since only ratios count.

timing.py holds the turns and their statistics, training.py a training that takes turns, sampling.py the benchmark of
the paper's figure. Importing the package imports no torch. What only developers run is in the repository's folder
benchmarks/.
"""
