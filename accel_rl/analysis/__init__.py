"""Analyzes runs: learning curves, scores, videos, and the trained policy itself."""
