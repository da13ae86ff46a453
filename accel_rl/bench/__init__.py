"""The benchmark of sampling, `accel-rl bench sampling`: contestants take turns in one run, since only ratios count.

timing.py holds the turns and their statistics, sampling.py the benchmark. Importing the package imports no torch. What
only developers run stands in the repository's folder benchmarks/.
"""
