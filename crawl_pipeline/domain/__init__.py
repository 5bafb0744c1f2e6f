"""Pure rules and values: no I/O, no clock, no randomness that is not an argument."""
