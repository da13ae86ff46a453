"""The emulator on an NVIDIA GPU: the functions of accel_rl.emulator as kernels, one thread per console.

compilation.py compiles the CPU's functions to PTX. memory.py has the difference: the layout of a console's words.
kernels.py has the kernels' bodies, which are ordinary entries, so a CPU can run them thread by thread. driver.py loads
and launches them.
"""
