"""HTTP clients against servers that misbehave in every way we know."""
