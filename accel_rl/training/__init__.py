"""One learner's run: the trainer and its parts, from resolved settings to checkpoints and logs."""
