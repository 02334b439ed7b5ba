"""Run a module with the mithridate package of another directory instead of the installed one:

python scripts/with_package.py DIRECTORY -m MODULE [ARGUMENT …]
"""

import runpy
import sys

directory, flag, module = sys.argv[1:4]
assert flag == "-m", __doc__
# An editable install finds the package by a hook, which would win over the path.
sys.meta_path[:] = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
sys.path.insert(0, directory)
sys.argv = [module, *sys.argv[4:]]
runpy.run_module(module, run_name="__main__", alter_sys=True)
