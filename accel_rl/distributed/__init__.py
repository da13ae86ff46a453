"""Several learners in one run: how they start, how they are supervised, and how they coordinate."""
