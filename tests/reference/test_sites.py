"""Sites of a model: read in a pass, or replaced."""

import pytest
import torch
from torch import Tensor, nn

from attnviz.trace.taps import at_site

STATES, SOURCE = torch.ones(1, 2, 3), 5 * torch.ones(1, 4, 3)


class Attention(nn.Module):
    """Gives back what it was called with: its input, the sum of its source, and a third."""

    def forward(self, hidden_states: Tensor, key_value_states: Tensor | None = None) -> tuple[Tensor, Tensor, int]:
        return hidden_states, (hidden_states if key_value_states is None else key_value_states).sum(), 3


@pytest.mark.parametrize(
    ("side", "crosses", "read", "after"),
    [
        ("input", True, STATES, (2 * STATES, SOURCE.sum())),
        ("source", True, SOURCE, (STATES, 2 * SOURCE.sum())),
        ("source", False, STATES, (2 * STATES, 2 * STATES.sum())),
        ("output", False, STATES, (2 * STATES, STATES.sum())),
        ("weights", False, STATES.sum(), (STATES, 2 * STATES.sum())),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_site_is_read_and_replaced_until_its_handle_is_removed(side, crosses, read, after, named):
    module, seen = Attention(), []
    args, kwargs = ((), {"hidden_states": STATES}) if named else ((STATES,), {})
    kwargs |= {"key_value_states": SOURCE} if crosses else {}
    plain = module(*args, **kwargs)
    with at_site(module, side, seen.append):
        for found, expected in zip(module(*args, **kwargs), plain, strict=True):
            assert found is expected or torch.equal(found, expected)
    assert torch.equal(*seen, read)
    with at_site(module, side, lambda tensor: 2 * tensor):
        first, second, third = module(*args, **kwargs)
    assert torch.equal(first, after[0])
    assert torch.equal(second, after[1])
    assert third == 3
    assert not module._forward_hooks
    assert not module._forward_pre_hooks
