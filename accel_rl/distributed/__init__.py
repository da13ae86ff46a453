"""Several learners in one run: how they start, who watches over them, and what they tell each other."""
