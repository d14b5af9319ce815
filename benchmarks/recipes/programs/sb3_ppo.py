"""PPO of stable-baselines3 on CartPole."""

import torch
from stable_baselines3 import PPO

import gapless
from benchmarks.recipes.clock import clock


rows = 32 if clock.tiny else 512
model = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=rows, batch_size=rows // 8, device=clock.device, seed=1
)
policy, optimizer = model.policy, model.policy.optimizer
torch.distributions.Distribution.set_default_validate_args(False)  # gapless
gapless.capture(policy, optimizer, device=clock.device)  # gapless
clock.length = 80
model.train = clock.timed(model.train, num=80)
model.learn(total_timesteps=10**9)
