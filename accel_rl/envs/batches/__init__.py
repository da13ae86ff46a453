"""Many environments at a time, in the columns of a rollout: single ones in turn, or batches by nature."""
