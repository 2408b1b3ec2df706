"""What can be got at from some objects: the walk that threat tests plant secrets for."""

import gc
import types

import torch
from torch import Tensor


def reachable(*roots: object) -> list[Tensor]:
    """Every tensor that can be got at from some objects, whatever the way."""
    seen: set[int] = set()
    tensors: list[Tensor] = []
    line = list(roots)
    while line:
        one = line.pop()
        if id(one) in seen or isinstance(one, types.ModuleType | type):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            tensors.append(one)
            if one.grad_fn is not None:
                line.append(one.grad_fn)
        if type(one).__module__ == "torch.autograd" or "Backward" in type(one).__name__:
            saved = [getattr(one, name) for name in dir(one) if name.startswith("_saved")]
            line += saved + [node for node, _ in one.next_functions if node is not None]
        if isinstance(one, types.FunctionType):
            line += [cell.cell_contents for cell in one.__closure__ or ()]
            continue
        line += gc.get_referents(one)
    return tensors


def holds(tensors: list[Tensor], secret: Tensor) -> bool:
    """Whether a tensor is the secret, a part of its memory, or holds the same values."""
    wanted = secret.detach().flatten()
    for one in tensors:
        if one.numel() and one.untyped_storage().data_ptr() == secret.untyped_storage().data_ptr():
            return True
        flat = one.detach().flatten()
        same = flat.numel() == wanted.numel() and flat.dtype == wanted.dtype
        if same and torch.equal(flat, wanted):
            return True
    return False
