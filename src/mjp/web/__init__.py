"""The page of `mjp serve`, and the API behind it."""
