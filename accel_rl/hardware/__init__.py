"""The machine of a run: logical CPUs and their division, devices, timers, signals, shared memory."""
