"""Settings: typed fields with help and rules, and the presets and YAML files that they are read from."""
