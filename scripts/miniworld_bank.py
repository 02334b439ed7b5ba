"""Render the frames that pretraining in Miniworld asks for, and say what they cost.

    python scripts/miniworld_bank.py --layouts 300 --walks 4

Frames that are on disk are not rendered again. Ctrl-C is safe: what is finished is kept.
"""

from __future__ import annotations

import argparse
import sys
import time

from mithridate.envs import make_env
from mithridate.envs.miniworld import Miniworld, bank
from mithridate.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", type=int, default=300)
    parser.add_argument("--walks", type=int, default=4)
    options = parser.parse_args()
    try:
        env = make_env("miniworld", layouts=options.layouts, walks=options.walks)
        assert isinstance(env, Miniworld)
        poses = env.bank_poses()
        print(f"{len(poses):,} frames, {1875 * len(poses) / 1e6:.0f} MB, in {bank.directory()}")
        begun, cpu = time.perf_counter(), time.process_time()
        env.frames.prepare(poses, lambda done, total: print(f"{done:,} of {total:,}", flush=True))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"{wall:.1f} s, {cpu:.1f} s of a core: {1e3 * cpu / len(poses):.3f} ms a frame")
    return 0


if __name__ == "__main__":
    sys.exit(main())
