"""Sites of a model: read in a pass, or replaced."""

import pytest
import torch
from torch import Tensor, nn

from attnviz.inputs.text import tokenize
from attnviz.run.sites import at_site, sites_of, taps
from tests.support.families import checkpoint_of

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
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_site_is_read_and_replaced_until_its_handle_is_removed(side, crosses, read, after, named):
    module, seen = Attention(), []
    args, kwargs = ((), {"hidden_states": STATES}) if named else ((STATES,), {})
    kwargs |= {"key_value_states": SOURCE} if crosses else {}
    plain = module(*args, **kwargs)
    with at_site(module, side, seen.append):
        looked_at = module(*args, **kwargs)
    assert torch.equal(*seen, read)
    with at_site(module, side, lambda tensor: 2 * tensor):
        replaced = module(*args, **kwargs)
    for found, expected in ((looked_at, plain), (replaced, (*after, 3)), (module(*args, **kwargs), plain)):
        assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("family", ["albert", "gpt_neox", "llama"])
def test_taps_read_and_replace_in_the_run_of_each_layer_where_layers_share_modules_too(family):
    checkpoint = checkpoint_of(family)
    inputs = tokenize(checkpoint, "the cat saw the dog").model_inputs(checkpoint.device)
    sites, read = sites_of(checkpoint, ("residual",)), {}

    def states(visit):
        with torch.no_grad(), taps(sites, visit):
            return checkpoint.model(**inputs, output_hidden_states=True).hidden_states

    own = states(read.__setitem__)
    assert list(read) == [(layer, "residual") for layer in checkpoint.layers]
    assert all(torch.equal(tensor, own[layer]) for (layer, _), tensor in read.items())
    sites = sites_of(checkpoint, ("residual",), [1])
    changed = states(lambda _, tensor: tensor + 1)
    same = [torch.equal(one, other) for one, other in zip(own, changed, strict=True)]
    assert same == [layer < 2 for layer in range(checkpoint.n_layers + 1)]
