"""An exponential average of the weights, by torch.optim.swa_utils and by hand with foreach."""

import copy

import torch
from counting import report
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300)).cuda()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
mine = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.RMSprop(model.parameters())
for _ in range(3):
    loss = model(torch.randn(32, 300, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    torch._foreach_lerp_(list(mine.parameters()), [p.detach() for p in model.parameters()], 0.01)
del loss
report(model, average, mine, optimizer)
