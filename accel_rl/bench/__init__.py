"""The benchmark of `accel-rl bench`: contestants take turns in one run, since only ratios count.

timing.py holds the turns and their statistics, sampling.py the benchmark of the paper's figure. Other benchmarks are in
the repository's folder benchmarks/.
"""
