"""Reinforcement learning: PPO on a made-up environment, with minibatches and early stopping."""

import torch
from counting import report
from torch.distributions import Categorical

policy = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).cuda()
value = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).cuda()
both = torch.nn.ModuleList([policy, value])
optimizer = torch.optim.Adam(both.parameters(), lr=3e-4)
state = torch.zeros(8)
for _ in range(2):
    states, actions, logs, rewards = [], [], [], []
    for _ in range(32):
        with torch.no_grad():
            choice = Categorical(logits=policy(state.cuda()))
            action = choice.sample()
            logs.append(choice.log_prob(action))
        states.append(state)
        actions.append(action)
        rewards.append(1.0 if action.item() == 0 else 0.0)
        state = torch.randn(8)
    s, a, old = torch.stack(states).cuda(), torch.stack(actions), torch.stack(logs)
    returns = torch.tensor(rewards, device="cuda").flip(0).cumsum(0).flip(0)
    with torch.no_grad():
        gain = returns - value(s).squeeze(-1)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    for _ in range(3):
        for batch in torch.randperm(32, device="cuda").split(8):
            choice = Categorical(logits=policy(s[batch]))
            ratio = (choice.log_prob(a[batch]) - old[batch]).exp()
            clipped = torch.clamp(ratio, 0.8, 1.2)
            loss = -torch.min(ratio * gain[batch], clipped * gain[batch]).mean()
            loss = loss + (value(s[batch]).squeeze(-1) - returns[batch]).square().mean()
            loss = loss - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(both.parameters(), 0.5)
            optimizer.step()
        if (ratio - 1).mean().abs() > 100:
            break
del states, actions, logs, action, choice, s, a, old, returns, gain, batch, ratio, clipped, loss
report(both, optimizer)
