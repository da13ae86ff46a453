"""The machine of a run: its logical CPUs and their division, devices, timers, signals, memory shared by processes."""
