"""Text token by token: temperature, top-k, top-p, an end token, a cache that grows by cat."""

import torch
from counting import report

embed, mix = torch.nn.Embedding(100, 96).cuda(), torch.nn.Linear(96, 96).cuda()
head = torch.nn.Linear(96, 100).cuda()
tokens = torch.randint(0, 100, (2, 5), device="cuda")
done = torch.zeros(2, dtype=torch.bool, device="cuda")
cache = embed(tokens).detach()
with torch.no_grad():
    for _ in range(20):
        query = mix(cache[:, -1:])
        seen = torch.softmax(query @ cache.transpose(1, 2), -1) @ cache
        logits = head(seen[:, 0]) / 0.8
        best = logits.topk(50).values[:, -1:]
        logits = logits.masked_fill(logits < best, float("-inf"))
        ordered, places = logits.sort(descending=True)
        beyond = ordered.softmax(-1).cumsum(-1) > 0.9
        logits = logits.masked_fill(beyond.scatter(1, places, beyond), float("-inf"))
        chosen = torch.multinomial(logits.softmax(-1), 1)
        done |= chosen[:, 0] == 2
        tokens = torch.cat([tokens, chosen], 1)
        cache = torch.cat([cache, embed(chosen)], 1)
        if done.all():
            break
assert tokens.shape == (2, 25), tokens.shape
del query, seen, logits, best, ordered, places, beyond, chosen
report(embed, mix, head, tokens, done, cache)
