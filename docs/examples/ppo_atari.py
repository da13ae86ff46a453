"""PPO on Atari in one file, with CleanRL's settings but for its clipped value loss, for either AtariVectorEnv.

python docs/examples/ppo_atari.py --game breakout --total-steps 10000000
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn

from accel_rl.emulator import AtariVectorEnv  # ale-py's: from ale_py.vector_env import AtariVectorEnv


@dataclass(frozen=True)
class Settings:
    game: str = "breakout"
    total_steps: int = 10_000_000  # 40 million frames
    seed: int = 1
    num_envs: int = 8
    num_threads: int = 0  # 0: one for each processor
    horizon: int = 128  # steps of each environment between two updates
    learning_rate: float = 2.5e-4  # falls to 0
    discount: float = 0.99
    gae_lambda: float = 0.95
    epochs: int = 4
    num_minibatches: int = 4
    clip: float = 0.1
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class Agent(nn.Module):
    """The network of Mnih et al. 2015, with a policy and a value."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.body = nn.Sequential(
            *(_orthogonal(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU()),
            *(_orthogonal(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
            *(_orthogonal(nn.Conv2d(64, 64, 3)), nn.ReLU(), nn.Flatten()),
            *(_orthogonal(nn.Linear(64 * 7 * 7, 512)), nn.ReLU()),
        )
        self.policy = _orthogonal(nn.Linear(512, num_actions), gain=0.01)
        self.value = _orthogonal(nn.Linear(512, 1), gain=1.0)

    def forward(self, observation: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        features = self.body(observation / 255.0)
        return torch.distributions.Categorical(logits=self.policy(features)), self.value(features).squeeze(-1)


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float = 2**0.5) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def train(settings: Settings) -> None:
    """Trains an agent; prints the mean score of the last 20 games and the steps per second."""
    torch.manual_seed(settings.seed)
    vector_env = AtariVectorEnv(
        settings.game, settings.num_envs, num_threads=settings.num_threads, reward_clipping=False
    )
    env = RecordEpisodeStatistics(vector_env)
    assert isinstance(env.single_action_space, Discrete)
    agent = Agent(int(env.single_action_space.n)).to(settings.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=1e-5)
    T, B = settings.horizon, settings.num_envs
    shape = (T, B)
    frames, _ = env.reset(seed=settings.seed)
    observation = torch.zeros((T, *frames.shape), dtype=torch.uint8, device=settings.device)
    action = torch.zeros(shape, dtype=torch.int64, device=settings.device)
    log_prob, reward, value, done = torch.zeros((4, *shape), device=settings.device)

    ended = np.zeros(B, bool)
    scores: deque[float] = deque(maxlen=20)
    start = time.perf_counter()
    num_updates = settings.total_steps // (T * B)
    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - update / num_updates)

        # The step after an end starts a new game whatever the action is: it is not learned from.
        valid = torch.zeros(shape, dtype=torch.bool, device=settings.device)
        for t in range(T):
            observation[t] = torch.as_tensor(frames)
            valid[t] = torch.as_tensor(~ended)
            with torch.no_grad():
                policy, value[t] = agent(observation[t])
            action[t] = policy.sample()
            log_prob[t] = policy.log_prob(action[t])
            frames, rewards, terminated, truncated, infos = env.step(action[t].cpu().numpy())
            reward[t] = torch.as_tensor(np.sign(rewards))
            ended = terminated | truncated
            done[t] = torch.as_tensor(ended)
            if "episode" in infos:
                scores.extend(infos["episode"]["r"][infos["_episode"]].tolist())
        with torch.no_grad():
            _, last_value = agent(torch.as_tensor(frames, device=settings.device))

        advantage = torch.zeros(shape, device=settings.device)
        next_advantage = torch.zeros(B, device=settings.device)
        for t in reversed(range(T)):
            next_value = last_value if t == T - 1 else value[t + 1]
            goes_on = 1 - done[t]
            delta = reward[t] + settings.discount * goes_on * next_value - value[t]
            next_advantage = delta + settings.discount * settings.gae_lambda * goes_on * next_advantage
            advantage[t] = next_advantage
        batch = [x[valid] for x in (observation, action, log_prob, advantage, advantage + value)]
        learn(agent, optimizer, batch, settings)

        steps = (update + 1) * T * B
        if update % 10 == 9 or update == num_updates - 1:
            score = f"{np.mean(scores):.1f}" if scores else "none yet"
            print(f"{steps} steps: score {score}, {steps / (time.perf_counter() - start):.0f} steps/s", flush=True)
    env.close()


def learn(agent: Agent, optimizer: torch.optim.Optimizer, batch: list[Tensor], settings: Settings) -> None:
    """Does an update on a batch: observation, action, log_prob, advantage, return_, each [N, ...]."""
    for _ in range(settings.epochs):
        for part in torch.randperm(len(batch[0]), device=batch[0].device).chunk(settings.num_minibatches):
            observation, action, log_prob, advantage, return_ = (x[part] for x in batch)
            policy, value = agent(observation)
            ratio = (policy.log_prob(action) - log_prob).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = 0.5 * (value - return_).square().mean()
            entropy = policy.entropy().mean()
            loss = policy_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
            optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for setting in fields(Settings):
        name = "--" + setting.name.replace("_", "-")
        parser.add_argument(name, type=type(setting.default), default=setting.default, help="default: %(default)s")
    train(Settings(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
