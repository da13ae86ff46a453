"""The folder of a run: its files, the lock on it, and the checks of files that other people may have written."""
