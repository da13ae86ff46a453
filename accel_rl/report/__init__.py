"""`accel-rl report`: one page about runs, or about an experiment, that needs nothing but a browser.

command.py is the command. page.py makes the page: record.py reads each run, figures.py draws, and page.html is the
template, with page.css and page.js. Importing the package does not import Plotly.
"""
