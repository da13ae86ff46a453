"""Settings of a run, from names, files and flags to one checked configuration. config/ declares them."""
