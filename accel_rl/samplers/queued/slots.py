"""Defines the memory that agents and learner share: slots for segments, and queues of numbers. Imports no torch.

Every agent has a few slots of its own, each with room for one segment of at most T steps. The agent writes a segment
into a slot and puts the slot's number into the training queue. The slot is free again once a trainer has copied it. The
prediction queue holds numbers of agents; an agent's row of `status` says what it asks for. The contents of
arrays are never pickled, and all memory is allocated at the start.
"""

import array
import fcntl
import os
import termios
from collections.abc import Iterable
from enum import IntEnum

import numpy as np

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.hardware.shared_memory import Layout, make_poller

RECORD = np.dtype("<i4")  # a queue's entry
QUEUE_LENGTH = 2**12 // RECORD.itemsize  # entries in the smallest pipe, of one page; most pipes have 16 pages
MAX_AGENTS = 1024
MAX_GENERATIONS = 2**20


class SlotState(IntEnum):
    """Who may use a slot. FREE: its agent, to begin a segment; WRITING: its agent; QUEUED: the trainers."""

    FREE, WRITING, QUEUED = range(3)


class Ending(IntEnum):
    """The end of a segment, and what follows its last step.

    FULL: it has T steps; the value after it came with the next prediction. TERMINATED: nothing follows. TRUNCATED: the
    true last observation follows, whose value was requested. CUT: the agent retires, or its environment has failed; row
    num_steps follows, whose value came with its prediction."""

    FULL, TERMINATED, TRUNCATED, CUT = range(4)


class Status(IntEnum):
    """Columns of an agent's row of `status`.

    HEARTBEAT counts its signs of life. IS_WAITING: it waits for the learner; WAITED_NS: its waits so far. SLOT, ROW:
    the row that it asks about; PREVIOUS: the full segment that gets the value of that row, or -1; IS_FINAL: it asks for
    the value alone, of a truncated episode's last observation. DRAWN_INTO: the slot with the draws that its request for
    an auxiliary task is about. FILLS: its replay is not full, so it draws nothing yet. RETIRES: the learner asks it to
    end. GENERATION counts the processes with its number."""

    HEARTBEAT, IS_WAITING, WAITED_NS, SLOT, ROW, PREVIOUS, IS_FINAL, DRAWN_INTO, FILLS, RETIRES, GENERATION = range(11)


def shared_layout(
    spec: EnvSpec, horizon: int, num_slots: int, num_agents: int, auxiliary: Layout | None = None
) -> Layout:
    """Returns the arrays that agents and learner share, for segments of at most T = horizon steps.

    The first axis is the slot, the second the row. Row h + t of observation is the one before step t, after
    h = frame_stack - 1 rows of history. auxiliary: arrays of one slot for draws from an agent's replay."""
    T, N, row = horizon, num_slots, spec.row_shape
    history = spec.history
    action = (spec.action_shape, spec.action_dtype.str)
    layout: Layout = {
        "observation": ((N, history + T + 1, *row), spec.row_dtype.str),
        "action": ((N, T, *action[0]), action[1]),
        "reward": ((N, T), "<f4"),
        "age": ((N, T + 1), "<i8"),  # rows since the first one of the learner's episode
        "reset": ((N, T + 1), "|b1"),  # a new game starts at this row
        "previous_action": ((N, T + 1, *action[0]), action[1]),
        "previous_reward": ((N, T + 1), "<f4"),
        "num_steps": ((N,), "<i8"),
        "ending": ((N,), "<i8"),
        "game_score": ((N,), "<f8"),
        "game_length": ((N,), "<i8"),  # steps; 0: no game has ended with the segment
        "state": ((N,), "<i8"),
    }
    layout |= {name: ((N, *shape), dtype) for name, (shape, dtype) in (auxiliary or {}).items()}
    return layout | {"status": ((num_agents, len(Status)), "<i8"), "restarts": ((num_agents,), "<i8")}


class IndexQueue:
    """A queue of numbers from 0 to 2^31 - 1 between processes. Many processes put, many threads get.

    It is a pipe of records of 4 bytes. The operating system writes and reads them whole and in order, and wakes a
    process that waits. It never holds more than QUEUE_LENGTH numbers, since each stands for a slot or an agent."""

    def __init__(self) -> None:
        self.fds = os.pipe()
        os.set_blocking(self.fds[0], False)

    @property
    def fd(self) -> int:
        """The file descriptor that is readable while there are numbers."""
        return self.fds[0]

    def put(self, numbers: Iterable[int]) -> None:
        """Appends numbers with one write, so numbers of other processes cannot come between."""
        os.write(self.fds[1], np.fromiter(numbers, RECORD).tobytes())

    def get(self, most: int) -> list[int]:
        """Takes at most `most` numbers; does not wait for any."""
        try:
            numbers: list[int] = np.frombuffer(os.read(self.fds[0], most * RECORD.itemsize), RECORD).tolist()
            return numbers
        except BlockingIOError:
            return []

    def wait(self, timeout_s: float) -> bool:
        """Waits for numbers, at most timeout_s; returns whether there are any."""
        return wait_for_any([self], timeout_s)

    def __len__(self) -> int:
        size = array.array("i", [0])
        fcntl.ioctl(self.fds[0], termios.FIONREAD, size)
        return size[0] // RECORD.itemsize

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def wait_for_any(queues: Iterable[IndexQueue], timeout_s: float) -> bool:
    """Waits for numbers in one of the queues, at most timeout_s; returns whether there are any."""
    return bool(make_poller(*(queue.fd for queue in queues)).poll(timeout_s * 1000))


def request(agent: int, generation: int) -> int:
    """Returns a record of the prediction queue. generation: the agent's; requests of a dead process get no answer."""
    return generation % MAX_GENERATIONS * MAX_AGENTS + agent


def agents_of(requests: list[int], status: Array) -> list[int]:
    """Returns the agents of these requests, in order, without those whose process has been replaced since."""
    found = (divmod(number, MAX_AGENTS) for number in requests)
    return [agent for generation, agent in found if status[agent, Status.GENERATION] % MAX_GENERATIONS == generation]


def slots_of(agent: int, slots_per_agent: int) -> range:
    """Returns the numbers of an agent's slots."""
    return range(agent * slots_per_agent, (agent + 1) * slots_per_agent)


def free_slots(state: Array, agent: int, slots_per_agent: int) -> list[int]:
    return [slot for slot in slots_of(agent, slots_per_agent) if state[slot] == SlotState.FREE]
