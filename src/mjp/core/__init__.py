"""What every room stands on: errors, random generators, records."""
