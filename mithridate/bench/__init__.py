"""`mithridate bench`: how fast, against whom, and how it grows."""
