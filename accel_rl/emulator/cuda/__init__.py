"""The emulator on an NVIDIA GPU: the functions of accel_rl.emulator as kernels, one thread a console.

compilation.py makes PTX of the functions that the CPU runs, too. memory.py has what differs: where a console's words
lie. kernels.py has the kernels' bodies, which are ordinary entries: a CPU can run them thread by thread. driver.py
loads and launches them.
"""
