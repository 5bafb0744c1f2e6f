"""HTTP: one hop at a time, within limits that no server can stretch, to addresses that the contract allows."""
