"""What the program runs on: the CPUs and who runs where, devices, timers, and what processes share.

Modules, among others: topology (which logical CPUs there are), placement (which part of a run uses which), devices,
instructions, shared_memory (arrays and semaphores between processes), signals (SIGINT and SIGTERM), timers.
"""
