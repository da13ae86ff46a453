"""Samples with queues, as in GA3C (Babaeizadeh et al. 2017), with agents, predictors and trainers.

Read agent.py (a process with one environment), predictor.py (threads that choose actions), batches.py (segments merged
into batches to learn from), then sampler.py, which joins them. This file imports nothing, so agents need no torch.
"""
