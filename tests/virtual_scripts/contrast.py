"""Two views, normalised, every pair compared; a queue of negatives; distillation by a teacher."""

import torch
import torch.nn.functional as F
from counting import report

student, teacher = (torch.nn.Linear(96, 32).cuda() for _ in range(2))
teacher.requires_grad_(False).eval()
queue = F.normalize(torch.randn(256, 32, device="cuda"), dim=1)
temperature = torch.nn.Parameter(torch.tensor(0.07, device="cuda"))
optimizer = torch.optim.SGD([*student.parameters(), temperature], lr=0.1, momentum=0.9)
place = 0
for _ in range(3):
    x = torch.randn(16, 96, device="cuda")
    a = F.normalize(student(x), dim=1)
    with torch.no_grad():
        b = F.normalize(teacher(x + 0.1 * torch.randn_like(x)), dim=1)
    logits = torch.cat([(a * b).sum(1, keepdim=True), a @ queue.T], 1) / temperature
    loss = F.cross_entropy(logits, torch.zeros(16, dtype=torch.long, device="cuda"))
    pairs = a @ a.T
    apart = pairs.masked_fill(torch.eye(16, dtype=torch.bool, device="cuda"), -1e9)
    loss = (
        loss
        + torch.logsumexp(apart, 1).mean()
        + F.kl_div(F.log_softmax(a / 2, 1), F.softmax(b / 2, 1), reduction="batchmean")
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        queue[place : place + 16] = b
        place = (place + 16) % 256
        for mine, theirs in zip(student.parameters(), teacher.parameters()):
            theirs.lerp_(mine, 0.01)
del x, a, b, logits, loss, pairs, apart
report(student, teacher, queue, temperature, optimizer)
