"""Returns and targets against slow, obvious loops over one environment, and against vectors worked out by hand."""

import math

import pytest
import torch

from accel_rl.algos import returns

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)
SEEDS = (0, 1, 8, 19)
DISCOUNT = 0.99

# Worked out by hand, for one environment.
REWARD = [1.0, 0.0, -1.0, 0.0, 1.0]
DONE = [False, False, True, False, False]
VALUE = [0.5, 0.4, 0.3, 0.2, 0.1]


def random_rollout(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    num_steps, num_envs = 1 + seed, 3
    reward, value, log_ratio = torch.randn(3, num_steps, num_envs, generator=generator, dtype=dtype)
    done = torch.rand(num_steps, num_envs, generator=generator) < 0.2
    bootstrap_value = torch.randn(num_envs, generator=generator, dtype=dtype)
    return reward, value, done, bootstrap_value, log_ratio


def column(*values, dtype=torch.float64):
    """Returns one environment's values as tensors [T, 1]; DONE stays bool."""
    return tuple(torch.tensor(v, dtype=None if isinstance(v[0], bool) else dtype)[:, None] for v in values)


def per_env(slow, *arrays):
    """Runs a loop written for one environment over all environments; returns float64 [T, B]."""
    envs = zip(*(array.tolist() if array.dim() == 1 else array.T.tolist() for array in arrays), strict=True)
    return torch.tensor([slow(*env) for env in envs], dtype=torch.float64).T


def assert_close(actual, expected, dtype=torch.float64):
    assert actual.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def slow_return(reward, done, bootstrap_value, discount=DISCOUNT):
    """Sums discounted rewards from every step until done, plus the bootstrap value if no step is done."""
    result = []
    for start in range(len(reward)):
        total, weight = 0.0, 1.0
        for t in range(start, len(reward)):
            total += weight * reward[t]
            weight *= discount
            if done[t]:
                break
        else:
            total += weight * bootstrap_value
        result.append(total)
    return result


def slow_td_errors(reward, value, done, bootstrap_value):
    following = [*value[1:], bootstrap_value]
    return [reward[t] + (0 if done[t] else DISCOUNT * following[t]) - value[t] for t in range(len(reward))]


def slow_advantage(reward, value, done, bootstrap_value, gae_lambda):
    """Returns the sum of (discount lambda)^k delta_{t+k} up to done."""
    delta = slow_td_errors(reward, value, done, bootstrap_value)
    return slow_return(delta, done, 0.0, DISCOUNT * gae_lambda)


def slow_vtrace(reward, value, done, bootstrap_value, log_ratio, rho_bar, c_bar):
    """Computes IMPALA's equation 1: the sum of all later TD errors, weighted by the product of the c in between."""
    delta = slow_td_errors(reward, value, done, bootstrap_value)
    target = []
    for start in range(len(reward)):
        total, weight = value[start], 1.0
        for t in range(start, len(reward)):
            ratio = math.exp(log_ratio[t])
            total += weight * min(rho_bar, ratio) * delta[t]
            weight *= DISCOUNT * min(c_bar, ratio)
            if done[t]:
                break
        target.append(total)
    return target


def slow_vtrace_advantage(reward, value, done, bootstrap_value, log_ratio, rho_bar, c_bar):
    target = slow_vtrace(reward, value, done, bootstrap_value, log_ratio, rho_bar, c_bar)
    following = [*target[1:], bootstrap_value]
    return [
        min(rho_bar, math.exp(log_ratio[t])) * (reward[t] + (0 if done[t] else DISCOUNT * following[t]) - value[t])
        for t in range(len(reward))
    ]


def slow_n_step(reward, done, n):
    result = []
    for start in range(len(reward) - n + 1):
        total = 0.0
        for i in range(n):
            total += DISCOUNT**i * reward[start + i]
            if done[start + i]:
                break
        result.append(total)
    return result


def slow_projection(probabilities, support, target_support):
    """Splits each mass between the atoms below and above it by their distance."""
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    result = [0.0] * len(support)
    for mass, target in zip(probabilities, target_support, strict=True):
        position = (min(max(target, support[0]), support[-1]) - support[0]) / spacing
        below = min(int(position), len(support) - 2)
        result[below] += mass * (1 - (position - below))
        result[below + 1] += mass * (position - below)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_discounted_return_is_the_sum_of_rewards_to_the_end(seed, dtype):
    """A discounted return sums the rewards up to done, or up to the bootstrap value, in the input's precision."""
    reward, _, done, bootstrap_value, _ = random_rollout(seed, dtype)
    actual = returns.discounted_return(reward, done, bootstrap_value, DISCOUNT)
    assert_close(actual, per_env(slow_return, reward, done, bootstrap_value), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_generalized_advantage_is_the_sum_of_td_errors(seed, dtype):
    """The generalized advantage sums the TD errors up to done, and the return is A + V."""
    reward, value, done, bootstrap_value, _ = random_rollout(seed, dtype)
    gae_lambda = seed / 19
    advantage, return_ = returns.generalized_advantage(reward, value, done, bootstrap_value, DISCOUNT, gae_lambda)
    expected = per_env(lambda *env: slow_advantage(*env, gae_lambda), reward, value, done, bootstrap_value)
    assert_close(advantage, expected, dtype)
    assert_close(return_, expected + value, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.9), (math.inf, 1.5)])
@pytest.mark.parametrize("seed", SEEDS)
def test_vtrace_is_the_sum_of_weighted_td_errors(seed, rho_bar, c_bar, dtype):
    """V-trace's targets and advantages equal IMPALA's equation 1, cut at done, with rho and c clipped separately."""
    rollout = random_rollout(seed, dtype)
    target, advantage = returns.vtrace(*rollout, DISCOUNT, rho_bar, c_bar)
    expected = per_env(lambda *env: slow_vtrace(*env, rho_bar, c_bar), *rollout)
    assert_close(target, expected, dtype)
    expected = per_env(lambda *env: slow_vtrace_advantage(*env, rho_bar, c_bar), *rollout)
    assert_close(advantage, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_n_step_return_is_the_sum_of_n_rewards(seed, n, dtype):
    """An n-step return sums n rewards up to done and says whether one of the n steps was done."""
    reward, _, done, _, _ = random_rollout(seed + 4, dtype)
    return_, done_n = returns.n_step_return(reward, done, DISCOUNT, n)
    assert_close(return_, per_env(lambda *env: slow_n_step(*env, n), reward, done), dtype)
    assert done_n.dtype == torch.bool
    assert torch.equal(done_n, done.unfold(0, n, 1).any(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_projection_shares_mass_between_neighbours(seed, dtype):
    """The projection splits all mass between neighboring atoms and keeps the clipped mean."""
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(-10, 10, 51, dtype=dtype)
    probabilities = torch.randn(7, 51, generator=generator, dtype=dtype).softmax(-1)
    # A grid of 0.1 hits atoms and clipping often; discount 1 keeps targets on the atoms.
    reward = torch.randint(-30, 31, (7, 1), generator=generator).to(dtype) / 10
    target_support = reward + (1.0 if seed % 2 else DISCOUNT) * support
    actual = returns.project_distribution(probabilities, support, target_support)
    rows = zip(probabilities.tolist(), target_support.tolist(), strict=True)
    expected = torch.tensor([slow_projection(p, support.tolist(), t) for p, t in rows], dtype=torch.float64)
    assert_close(actual, expected, dtype)
    torch.testing.assert_close(actual.sum(-1), torch.ones(7, dtype=dtype), rtol=0, atol=1e-6)
    clipped_mean = (probabilities * target_support.clamp(-10, 10)).sum(-1)
    torch.testing.assert_close((actual * support).sum(-1), clipped_mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("reward", "discount", "atom", "expected"),
    [
        (0, 0, 0, {25: 1}),
        (1, 0, 0, {27: 0.5, 28: 0.5}),
        (-1, 0, 0, {22: 0.5, 23: 0.5}),
        (0.3, 0, 0, {25: 0.25, 26: 0.75}),
        (10, 0, 0, {50: 1}),
        (12, 0, 0, {50: 1}),
        (-math.inf, 0, 0, {0: 1}),
        (0.4, 1, 30, {31: 1}),
        (1, 0.99, 30, {32: 0.55, 33: 0.45}),
    ],
)
def test_projection_by_hand(reward, discount, atom, expected, dtype):
    """The projection equals examples worked out by hand, with all mass on an atom that is hit exactly."""
    support = torch.linspace(-10, 10, 51, dtype=dtype)
    probabilities = torch.zeros(1, 51, dtype=dtype)
    probabilities[0, atom] = 1
    actual = returns.project_distribution(probabilities, support, reward + discount * support[None])
    dense = torch.zeros(1, 51, dtype=torch.float64)
    for i, mass in expected.items():
        dense[0, i] = mass
    torch.testing.assert_close(actual.double(), dense, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_atoms_get_the_same_mass_on_every_device():
    """Scattering and gathering give each atom the same mass, and a nan position passes without an error."""
    position = torch.cat([torch.tensor([0.0, 0.25, 8.0, 7.75, 3.0]), torch.linspace(0, 8, 40)]).view(5, 9)
    mass = torch.linspace(-1, 1, 45).view(5, 9).softmax(-1)
    torch.testing.assert_close(returns.scatter_mass(mass, position), returns.gather_mass(mass, position))
    position[2, 3] = math.nan
    assert returns.scatter_mass(mass, position)[2].isnan().any()


@pytest.mark.parametrize("n", [-1, 0, 6])
def test_n_step_return_refuses_an_n_that_does_not_fit(n):
    """An n outside of 1 to T is refused."""
    reward, done = column(REWARD, DONE)
    with pytest.raises(ValueError, match=rf"n={n} .* T=5 .* 1 <= n <= T"):
        returns.n_step_return(reward, done, DISCOUNT, n)


def test_nothing_leaks_backwards_through_done():
    """Nan after a done step reaches no result up to that step."""
    reward, value, done, log_ratio = column(REWARD, VALUE, DONE, [0.1] * 5)
    for array in (reward, value, log_ratio):
        array[3:] = math.nan
    bootstrap_value = torch.tensor([math.nan], dtype=torch.float64)
    results = [
        returns.discounted_return(reward, done, bootstrap_value, DISCOUNT),
        *returns.generalized_advantage(reward, value, done, bootstrap_value, DISCOUNT, 0.95),
        *returns.vtrace(reward, value, done, bootstrap_value, log_ratio, DISCOUNT, 1.0, 1.0),
        returns.n_step_return(reward, done, DISCOUNT, 3)[0],
    ]
    assert all(result[:3].isfinite().all() for result in results)


def test_inputs_are_unchanged_and_targets_carry_no_gradient():
    """The functions change no input, and their results carry no gradient."""
    probabilities, support = torch.linspace(-1, 1, 18).view(2, 9).softmax(-1), torch.linspace(-2, 2, 9)
    inputs = [*random_rollout(9, torch.float32), probabilities, support]
    before = [x.requires_grad_(x.is_floating_point()).detach().clone() for x in inputs]
    reward, value, done, bootstrap_value, log_ratio, *_ = inputs
    results = [
        returns.discounted_return(reward, done, bootstrap_value, DISCOUNT),
        *returns.generalized_advantage(reward, value, done, bootstrap_value, DISCOUNT, 0.95),
        *returns.vtrace(reward, value, done, bootstrap_value, log_ratio, DISCOUNT, 1.0, 1.0),
        *returns.n_step_return(reward, done, DISCOUNT, 3),
        returns.project_distribution(probabilities, support, 0.3 + 0.9 * support.expand_as(probabilities)),
    ]
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
    assert not any(result.requires_grad for result in results)
