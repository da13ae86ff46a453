"""Experience by queues, as in GA3C (Babaeizadeh et al. 2017): agents, predictors, trainers.

Read agent.py (a process with one environment), predictor.py (threads that choose actions), batches.py (segments merged
into batches to learn from), then sampler.py, which joins them. Imports nothing: agents must stay free of torch.
"""
