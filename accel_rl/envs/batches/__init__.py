"""Batches of environments that fill the columns of a rollout, stepped one by one or all in one call."""
