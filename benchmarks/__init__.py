"""How fast tenure is: `python -m benchmarks` prints one JSON line a case."""
