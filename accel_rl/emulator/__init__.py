"""An Atari 2600 that is equal to ale-py's, bit by bit, for many environments at once; usable without the rest."""
