"""Defines recurrent cores, which carry a state from step to step and reset it where a new game starts.

Time comes first: x [T, B, F], state [B, S] before the first step, is_first [T, B] bool: a new game starts here. A core
returns its output [T, B, H] and the state after the last step. A single step is a sequence of T = 1, so acting and
learning run the same code. Biases and first states are zero, as in the code of Stooke & Abbeel.
"""

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    """A core:  i, f, g, o = x W + h U + b;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c').

    State: h and c, S = 2H. Source: Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    def __init__(self, num_inputs: int, num_units: int):
        super().__init__()
        self.state_size = 2 * num_units
        self.input = _gates(num_inputs, num_units, 4)
        self.recurrent = _orthogonal(num_units, 4)

    def forward(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for x_t, continues in zip(self.input(x).unbind(), (~is_first).unsqueeze(-1).unbind(), strict=True):
            h, c = (state * continues).chunk(2, -1)
            i, f, g, o = (x_t + h @ self.recurrent.T).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
            state = torch.cat([h, c], -1)
        return torch.stack(outputs), state


class GRU(nn.Module):
    """A core:  r, z = sigmoid(x W + h U + b);  n = tanh(x W_n + b_n + r (h U_n));  h' = (1 - z) n + z h.

    State: h, S = H. Source: Cho et al. 2014, in the form that cuDNN and PyTorch use.
    """

    def __init__(self, num_inputs: int, num_units: int):
        super().__init__()
        self.state_size = num_units
        self.input = _gates(num_inputs, num_units, 3)
        self.recurrent = _orthogonal(num_units, 3)

    def forward(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for x_t, continues in zip(self.input(x).unbind(), (~is_first).unsqueeze(-1).unbind(), strict=True):
            state = state * continues
            x_r, x_z, x_n = x_t.chunk(3, -1)
            h_r, h_z, h_n = (state @ self.recurrent.T).chunk(3, -1)
            z, n = (x_z + h_z).sigmoid(), (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
            state = n + z * (state - n)
            outputs.append(state)
        return torch.stack(outputs), state


CORES: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}


def _gates(num_inputs: int, num_units: int, num_gates: int) -> nn.Linear:
    """Returns the input weights of all gates, each Glorot-uniform, with zero biases."""
    layer = nn.Linear(num_inputs, num_gates * num_units)
    for weight in layer.weight.chunk(num_gates):
        nn.init.xavier_uniform_(weight)
    nn.init.zeros_(layer.bias)
    return layer


def _orthogonal(num_units: int, num_gates: int) -> nn.Parameter:
    """Returns the recurrent weights of all gates [num_gates H, H], each an orthogonal matrix."""
    weight = torch.empty(num_gates * num_units, num_units)
    for gate in weight.chunk(num_gates):
        nn.init.orthogonal_(gate)
    return nn.Parameter(weight)
