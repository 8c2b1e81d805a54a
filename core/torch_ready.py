"""torch, behind its first calls: to be imported before it is used by whatever may use it beside another thread.

Some of torch's functions in C++ set themselves up when they are first called, and import Python modules for that, where
Python's lock may pass to another thread. If that one calls the same function, it waits, with the lock, for the first
thread to be done, which waits for the lock: the process stands still for ever. Each `torch.tensor` asks such a function
(`torch::isStorage`, torch 2.13): a window's first run and its forecast of the memory met there, in one of forty starts.

While this module is imported, another thread that imports it waits without the lock.
"""

import torch

torch.tensor(0.0)
with torch.device("meta"):
    # As models without storage are made: by way of the functions that a device in force is asked through.
    torch.tensor([0.0])
    torch.nn.Linear(1, 1)
