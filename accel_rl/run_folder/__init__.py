"""The folder of a run: its files, who may write them, and whom to trust that has written them."""
