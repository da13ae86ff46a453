"""Child processes: their start, their messages, and their end. Imports no torch."""
