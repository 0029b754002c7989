"""torch.func: gradients of each sample by vmap, an ensemble, a Hessian-vector product."""

import copy

import torch
from counting import report
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1)).cuda()
weights = {name: p.detach() for name, p in model.named_parameters()}
x, y = torch.randn(16, 10, device="cuda"), torch.randn(16, 1, device="cuda")


def loss(weights, x, y):
    return (functional_call(model, weights, (x[None],)) - y).square().mean()


each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
assert each["0.weight"].shape == (16, 20, 10)
first, tangent = jvp(lambda w: grad(loss)(w, x[0], y[0]), (weights,), (weights,))
stacked, buffers = stack_module_state([copy.deepcopy(model) for _ in range(3)])
base = copy.deepcopy(model).to("meta")
out = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(stacked, buffers)
assert out.shape == (3, 16, 1)
del out
report(model, x, y, *(list(d.values()) for d in (each, first, tangent, stacked)))
