"""`accel-rl watch`: shows the runs of a folder in a browser while they train.

command.py is the command. server.py serves the list of runs (runs.html; runs.py finds them) and the pages of `accel-rl
report`, which live.js updates. Importing the package does not import the server.
"""
