"""Settings: typed fields with help and rules, and their sources: presets and YAML files."""
