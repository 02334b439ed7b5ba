"""Reward poisoning. Importing this package registers all attackers."""

from mithridate.attackers import uniform as uniform
