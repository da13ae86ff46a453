"""Settings as typed fields with help and rules, and the YAML files that they are read from."""
