"""An honest robustness figure for anybody's agent: a frozen suite of attacks, and what it finds."""
