"""Faults that are planted into the program, to see which of them the tests of `make test` catch (see README.md)."""
