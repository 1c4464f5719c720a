import gymnasium as gym
import torch
from torch import nn, optim

env = gym.make("CartPole-v1")
policy = nn.Linear(4, 2)
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(10):
    state, _ = env.reset()
    losses = []
    for t in range(1000):
        dist = torch.distributions.Categorical(logits=policy(torch.as_tensor(state)))
        action = dist.sample()
        state, reward, done, _, _ = env.step(action.item())
        losses.append(-dist.log_prob(action) * reward)
        if done:
            break
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
