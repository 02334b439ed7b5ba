"""The fuzzer's parts. `scripts/fuzz.py` is the door."""
