"""Soft actor-critic: squashed Gaussian, two critics with soft targets, a learnt temperature."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from counting import report
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs)
    ).cuda()


actor, critics = network(17, 12), nn.ModuleList([network(23, 1), network(23, 1)])
targets = copy.deepcopy(critics).requires_grad_(False)
temperature = torch.zeros(1, requires_grad=True, device="cuda")
optimizers = [torch.optim.Adam(p, 3e-4) for p in (actor.parameters(), critics.parameters())]
optimizers.append(torch.optim.Adam([temperature], 3e-4))
replay = np.zeros((1000, 17 + 6 + 1 + 17 + 1), np.float32)


def act(state):
    mean, scale = actor(state).chunk(2, -1)
    inner = Independent(Normal(mean, scale.clamp(-20, 2).exp()), 1)
    policy = TransformedDistribution(inner, [TanhTransform()])
    action = policy.rsample()
    return action, policy.log_prob(action)


def least(which, state, action):
    both = torch.cat([state, action], 1)
    return torch.min(*(critic(both) for critic in which)).squeeze(1)


def train(batch):
    state, action, reward, after, done = batch.split([17, 6, 1, 17, 1], 1)
    with torch.no_grad():
        following, log = act(after)
        value = least(targets, after, following) - temperature.exp() * log
        wanted = reward.squeeze(1) + 0.99 * (1 - done.squeeze(1)) * value
    both = torch.cat([state, action], 1)
    loss = sum(F.mse_loss(critic(both).squeeze(1), wanted) for critic in critics)
    step(optimizers[1], loss)
    critics.requires_grad_(False)
    action, log = act(state)
    step(optimizers[0], (temperature.exp().detach() * log - least(critics, state, action)).mean())
    critics.requires_grad_(True)
    step(optimizers[2], -(temperature.exp() * (log.detach() - 6)).mean())
    with torch.no_grad():
        for slow, fast in zip(targets.parameters(), critics.parameters()):
            slow.lerp_(fast, 0.005)
    return loss.item()


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


chance = np.random.default_rng(0)
for _ in range(4):
    rows = torch.from_numpy(replay[chance.integers(0, 1000, 64)])
    print(f"{train(rows.pin_memory().cuda(non_blocking=True)):.3f}")
report(actor, critics, targets, temperature, *optimizers)
