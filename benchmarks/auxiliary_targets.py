"""Draws what the auxiliary tasks are to learn, on frames of a short play.

python benchmarks/auxiliary_targets.py --out FILE.png [--env breakout] [--run RUN_DIR]

An untrained policy plays, or that of a run that has trained with all three tasks (--run). As for an update, the replay
draws a sequence, one with a reward soon after its start, and a window, one before a reward.

Above: the sequence's first frame and the next one; the pixel change between them in cells; and pixel control's target
for this step, the discounted sum of the changes that follow. Below: value replay's target for each step of the
sequence, beside its rewards; the newest frames of the window's three states, with the class of the reward that follows.
"""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.algos.actor_critic import ActorCriticAlgo
from accel_rl.algos.auxiliary_tasks import TASKS, at_end, pixel_change, replayed_return, reward_class
from accel_rl.analysis.plot import COLORS, new_figure, save, tidy
from accel_rl.errors import UsageError
from accel_rl.replay.sequences import SequenceReplay
from accel_rl.training import checkpoint
from accel_rl.training.build import build_algo, build_training_sampler, build_update
from accel_rl.training.resolve import resolve
from accel_rl.training.run_directory import ANY_MACHINE, read_settings
from command_line import make_parser, run_program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAY: dict[str, Any] = {
    "auxiliary": tuple(TASKS),
    "auxiliary_sequence_steps": 20,
    "envs": 8,
    "horizon": 20,
    "steps": 10**9,
    "sampler": "serial",
    "device": "cpu",
}
UNTRAINED: dict[str, Any] = {"algo": "a2c", "env_preset": "dqn84"}
NUM_ROLLOUTS, NUM_DRAWS = 40, 200
REWARD_AT = slice(4, 11)  # steps of the sequence, one of which shall have a reward
CLASSES = ("zero", "positive", "negative")


class Sequence(NamedTuple):
    """frames [L + 1, (C,) H, W]; change, control_target [L, h, w]; reward, value_target [L]."""

    frames: Tensor
    change: Tensor
    control_target: Tensor
    reward: Tensor
    value_target: Tensor


class Window(NamedTuple):
    """frames [3, (C,) H, W] of three states; the reward that follows."""

    frames: Tensor
    reward: float


def play(env: str, run: Path | None) -> ActorCriticAlgo:
    """Lets an untrained policy, or that of a run, play into its replay. Raises UsageError if that has other heads."""
    if run is None:
        config, state = resolve({**UNTRAINED, "env": env, **PLAY}), None
    else:
        state = checkpoint.load(run / checkpoint.CHECKPOINT)
        config = resolve(read_settings(run) | ANY_MACHINE | PLAY, spec=state["spec"])
    algo = build_algo(config)
    if not isinstance(algo, ActorCriticAlgo):
        raise UsageError(f"{run} is a run of {config.run.algo}, which has no auxiliary tasks; name another one")
    if state is not None:
        try:
            algo.policy.load_state_dict(state["policy"])
        except RuntimeError as error:
            raise UsageError(f"{run} was not trained with all of {', '.join(TASKS)}; name a run that was") from error
    algo.setup(config.run.seed, partial(build_update, config))
    sampler = build_training_sampler(config, algo)
    try:
        for _ in range(NUM_ROLLOUTS):
            algo.store(sampler.collect())
    finally:
        sampler.close()
    return algo


@torch.no_grad()
def draw_sequence(algo: ActorCriticAlgo) -> Sequence:
    """Draws until a whole sequence has a reward soon after its start. Raises UsageError if none has."""
    replay, settings, policy = algo.replay, algo.settings, algo.policy
    assert isinstance(replay, SequenceReplay) and algo.auxiliary
    for _ in range(NUM_DRAWS):
        batch = replay.gather_sequences(*replay.choose_sequences(replay.draw_noise(), replay.ring.rows))
        columns = (batch.valid.all(0) & (batch.reward[REWARD_AT] != 0).any(0)).nonzero().flatten()
        if len(columns):
            break
    else:
        raise UsageError("this play has too few rewards; take another --env, or a trained policy with --run")
    encoded = algo.auxiliary.tasks[0].encode(batch)  # [L + 1, b, F]
    q = policy.auxiliary_heads["pixel_control"](encoded[0].flatten(0, 1)).unflatten(0, batch.is_first.shape)
    change = pixel_change(batch.rows, settings.pixel_control_cell)
    last_q, last_value = at_end(q, batch).amax(1), at_end(policy.value(encoded), batch)
    of_each = (
        batch.rows,
        change,
        replayed_return(change, batch, last_q, settings.pixel_control_discount),
        batch.reward,
        replayed_return(batch.reward, batch, last_value, settings.discount),
    )
    return Sequence(*(values[:, columns[0]] for values in of_each))


def draw_window(algo: ActorCriticAlgo) -> Window:
    """Draws until a reward follows a window. Raises UsageError if there is none."""
    replay = algo.replay
    assert isinstance(replay, SequenceReplay)
    for _ in range(NUM_DRAWS):
        batch = replay.gather_windows(*replay.choose_windows(replay.draw_noise(), replay.ring.rows))
        columns = (batch.valid & (batch.reward != 0)).nonzero().flatten()
        if len(columns):
            states = batch.observation[:, columns[0]]
            return Window(states[:, -1] if algo.spec.frame_stack else states, float(batch.reward[columns[0]]))
    raise UsageError("this play has no rewards; take another --env, or a trained policy with --run")


def draw(sequence: Sequence, window: Window, cell: int) -> "Figure":
    """Draws the figure, 1000 x 520 pixels. cell: height and width of a cell, in pixels."""
    figure = new_figure(width=10)
    figure.set_size_inches(10, 5.2)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.2, 1)).flat
    above = upper.subplots(1, 4)
    for axes, row, title in ((above[0], 0, "frame $s_0$"), (above[1], 1, "next frame $s_1$")):
        show_frame(axes, sequence.frames[row], title)
    for axes, cells, title in (
        (above[2], sequence.change[0], "pixel change $c_0$"),
        (above[3], sequence.control_target[0], "pixel control's target $R_0$"),
    ):
        show_cells(axes, sequence.frames[0], cells, cell, title)
    left, right = lower.subfigures(1, 2, width_ratios=(1, 1.4))
    show_values(left.subplots(), sequence)
    states = right.subplots(1, 3)
    for index, axes in enumerate(states):
        show_frame(axes, window.frames[index], f"state {index + 1}")
    kind = CLASSES[int(reward_class(torch.tensor(window.reward)))]
    states[1].set_xlabel(f"reward prediction: the next reward is {window.reward:+g}, class {kind}", fontsize=9)
    return figure


def show_frame(axes: "Axes", frame: Tensor, title: str) -> None:
    """Shows a frame [(C,) H, W] of bytes, grey or colour."""
    picture = frame.movedim(0, -1) if frame.dim() == 3 else frame
    axes.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=255)
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])


def show_cells(axes: "Axes", frame: Tensor, cells: Tensor, cell: int, title: str) -> None:
    """Shows values of cells [h, w] over a frame [(C,) H, W], which is faint, with a colour bar."""
    (H, W), (h, w) = frame.shape[-2:], cells.shape
    top, left = (H - h * cell) // 2, (W - w * cell) // 2
    show_frame(axes, frame, title)
    place = (left - 0.5, left + w * cell - 0.5, top + h * cell - 0.5, top - 0.5)
    # The less a cell has, the more of the frame is seen.
    share = (cells - cells.min()) / (cells.max() - cells.min()).clamp(min=1e-9)
    image = axes.imshow(cells.numpy(), cmap="plasma", alpha=(0.4 + 0.6 * share).numpy(), extent=place)
    axes.set(xlim=(-0.5, W - 0.5), ylim=(H - 0.5, -0.5))
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=8, length=0)
    bar.outline.set_visible(False)


def show_values(axes: "Axes", sequence: Sequence) -> None:
    """Shows value replay's target and the rewards over the steps of the sequence."""
    steps = range(len(sequence.reward))
    axes.bar(steps, sequence.reward.numpy(), color=COLORS[4], width=0.5, label="reward")
    axes.plot(steps, sequence.value_target.numpy(), "o-", color=COLORS[0], markersize=4, label="value replay's target")
    tidy(axes)
    axes.tick_params(labelsize=8)
    axes.set_xticks(range(0, len(sequence.reward), 5))
    axes.set_xlabel(f"step of the sequence; behind the last one, $V(s_{{{len(sequence.reward)}}})$", fontsize=9)
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--env", default="breakout", help="environment with pictures and Discrete actions (breakout)")
    parser.add_argument("--run", type=Path, metavar="RUN_DIR", help="run whose policy plays, in its own environment")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png", help="the figure")
    given = parser.parse_args()

    def program() -> None:
        torch.manual_seed(0)
        algo = play(given.env, given.run)
        sequence, window = draw_sequence(algo), draw_window(algo)
        save(draw(sequence, window, algo.settings.pixel_control_cell), given.out)

    return run_program(program)


if __name__ == "__main__":
    sys.exit(main())
