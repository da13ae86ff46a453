"""Turns names, files and flags into one checked configuration of a run. config/ declares its settings."""
