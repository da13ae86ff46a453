"""Contains networks: trunks that turn observations into features, and policies that act on these."""
