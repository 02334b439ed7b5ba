"""Reward poisoning. Importing this package registers all attackers."""

from mithridate.attackers import adaptive as adaptive
from mithridate.attackers import few_arms as few_arms
from mithridate.attackers import gaussian as gaussian
from mithridate.attackers import rooms as rooms
from mithridate.attackers import structured as structured
from mithridate.attackers import tabular as tabular
from mithridate.attackers import uniform as uniform
