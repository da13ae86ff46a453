"""Benchmarks: contestants that take turns in one run, since figures count only as ratios. `accel-rl bench --help`.

timing.py holds their arithmetic, sampling.py is the benchmark of sampling, training.py that of training. Importing the
package imports no torch.
"""
