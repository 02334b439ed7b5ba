"""Everything that acts. Importing this package registers all agents."""

from mithridate.agents import any_size as any_size
from mithridate.agents import bandits as bandits
from mithridate.agents import in_context as in_context
from mithridate.agents import linear_bandits as linear_bandits
from mithridate.agents import many_bandits as many_bandits
from mithridate.agents import mixture_arms as mixture_arms
from mithridate.agents import mixture_linear as mixture_linear
from mithridate.agents import mixture_room as mixture_room
from mithridate.agents import npg as npg
from mithridate.agents import oracle as oracle
from mithridate.agents import posterior_oracle as posterior_oracle
from mithridate.agents import ppo as ppo
from mithridate.agents import q_learning as q_learning
from mithridate.agents import robust_bandits as robust_bandits
