"""Child processes: how they are started, what they are told, and what happens when one ends. Free of torch."""
