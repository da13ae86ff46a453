"""Faults to plant into the program, which show what the tests of `make test` catch (see README.md)."""
