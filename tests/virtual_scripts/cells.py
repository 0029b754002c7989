"""A decoder step by step: GRU and LSTM cells, attention, teacher forcing half the time."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from counting import report

random.seed(0)
embed, out = nn.Embedding(200, 64).cuda(), nn.Linear(128, 200).cuda()
first, second = nn.GRUCell(64 + 128, 128).cuda(), nn.LSTMCell(128, 128).cuda()
query = nn.Linear(128, 128).cuda()
parts = nn.ModuleList([embed, first, second, query, out])
optimizer = torch.optim.RMSprop(parts.parameters(), momentum=0.9)
for _ in range(3):
    seen = torch.randn(8, 20, 128, device="cuda")
    target = torch.randint(0, 200, (8, 12), device="cuda")
    hidden, (h, c) = seen.mean(1), (seen[:, 0], seen[:, -1])
    token, loss = target[:, 0], 0.0
    for step in range(1, 12):
        weight = (seen @ query(h).unsqueeze(-1)).softmax(1)
        context = (weight * seen).sum(1)
        hidden = first(torch.cat([embed(token), context], 1), hidden)
        h, c = second(hidden, (h, c))
        scores = out(h)
        loss = loss + F.cross_entropy(scores, target[:, step])
        token = target[:, step] if random.random() < 0.5 else scores.argmax(1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parts.parameters(), 5.0)
    optimizer.step()
del seen, target, hidden, h, c, token, loss, weight, context, scores
report(parts, optimizer)
