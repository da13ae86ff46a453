"""`accel-rl watch`: the runs of a folder in a browser while they train.

command.py is the command, server.py what it serves: the list of runs (runs.html, of what runs.py finds) and the pages
of `accel-rl report`, which live.js renews. Importing the package imports no server.
"""
