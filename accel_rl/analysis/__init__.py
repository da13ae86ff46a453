"""What one looks at after a run: learning curves, videos, and the trained agent itself."""
