"""What the program runs on: CPU topology, placement, devices, timers, memory and signals shared between processes."""
