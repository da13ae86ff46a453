"""The machine of a run: CPUs and placement, devices, timers, and memory shared by processes.

Modules, among others: topology (the logical CPUs), placement (their division among the parts of a run), devices,
instructions, shared_memory (arrays and semaphores between processes), signals (SIGINT and SIGTERM), timers.
"""
