"""Programs that let other people's frameworks train in turns. Each runs in an environment of its own, one per peer.

They import nothing of accel_rl, and are never imported by it: accel_rl/bench/driven.py starts them as scripts.
"""
