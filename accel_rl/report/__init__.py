"""`accel-rl report`: one page about runs, or about an experiment, that needs nothing but a browser.

command.py is the command, page.py the page: what record.py reads of each run and figures.py draws, in page.html with
page.css and page.js. Importing the package imports no Plotly.
"""
