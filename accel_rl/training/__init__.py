"""One learner's run: the training loop and its parts, from resolved settings to checkpoints and logs."""
