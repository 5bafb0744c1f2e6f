"""What a person clicks in the UI, in a real browser."""
