"""Mixed precision in fp16 with a scaler, clipping and accumulation."""

import torch
from counting import report

model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
model.cuda()
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (model(torch.randn(64, 512, device="cuda")) ** 2).mean() / 2
    scaler.scale(loss).backward()
    if step % 2:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
del loss
assert len(optimizer.state) == 4, "the optimizer stepped"
assert int(optimizer.state[model[0].weight]["step"]) == 2
report(model, optimizer, scaler._scale, scaler._growth_tracker)
