"""The analysis of a run: learning curves, scores, videos, and the trained policy itself."""
