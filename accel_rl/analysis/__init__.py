"""What is looked at after a run: learning curves, videos, and the trained agent itself."""
