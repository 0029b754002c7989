"""Optimizers of one's own: Lion, and an Adafactor with factored second moments."""

import torch
from counting import report


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                first, second = group["betas"]
                update = state["momentum"] * first + p.grad * (1 - first)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["momentum"].mul_(second).add_(p.grad, alpha=1 - second)


model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.LayerNorm(400)).cuda()
lion = Lion(model.parameters())
factored = torch.optim.Adafactor(model.parameters())
for _ in range(3):
    loss = model(torch.randn(16, 400, device="cuda")).abs().mean()
    assert torch.isfinite(loss)
    model.zero_grad()
    loss.backward()
    lion.step()
    factored.step()
assert factored.state[model[0].weight]["row_var"].numel() == 400
del loss
report(model, lion, factored)
