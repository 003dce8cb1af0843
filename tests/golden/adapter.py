"""What the recorder asks of graphformers, answered by the code as it is now.

Whatever the code renames is translated here, by a function of the same name as the baseline's:
settings, names of weights, answers and commands keep their neutral names in every recording. Right
now nothing differs.
"""

from adapter_89e3860 import *  # noqa: F403
