"""Checksums see every change, and nothing but changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.device import bits
from gapless.device.bits import Checksums


CPU = torch.device("cpu")
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.uint16, torch.uint64),
]
BYTES = {dtype: torch.empty(0, dtype=dtype).element_size() for dtype in DTYPES}


def take(tensor, *, num_elements=8):
    return Checksums(CPU, num_elements=num_elements).take(tensor).item()


def tensor_of(raw, dtype):
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).clone().view(dtype)


@st.composite
def tensors(draw, *, least=1):
    """Draw the raw bytes of a tensor of any kind, and the kind."""
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(st.integers(least, 40))
    size = count * BYTES[dtype]
    return draw(st.binary(min_size=size, max_size=size)), dtype


@settings(deadline=None, max_examples=60)
@given(drawn=tensors(), data=st.data())
def test_a_change_of_any_bits_of_one_element_changes_it(drawn, data):
    """A change of one element is seen, whatever its value and dtype."""
    raw, dtype = drawn
    size = BYTES[dtype]
    element = data.draw(st.integers(0, len(raw) // size - 1))
    flips = data.draw(st.integers(1, 2 ** (8 * size) - 1)).to_bytes(size, "little")
    changed = bytearray(raw)
    for place, flip in enumerate(flips, start=element * size):
        changed[place] ^= flip

    before, after = take(tensor_of(raw, dtype)), take(tensor_of(changed, dtype))

    assert before != after


@settings(deadline=None, max_examples=50)
@given(drawn=tensors(least=2), data=st.data())
def test_another_order_of_the_elements_changes_it(drawn, data):
    """A permutation is seen unless it puts equal bits in every place."""
    raw, dtype = drawn
    size = BYTES[dtype]
    elements = [raw[at : at + size] for at in range(0, len(raw), size)]
    shuffled = data.draw(st.permutations(elements))

    before, after = take(tensor_of(raw, dtype)), take(tensor_of(b"".join(shuffled), dtype))

    assert (before == after) == (elements == shuffled)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_swapped_sign_is_seen(dtype):
    """x and -x in each other's places, patterns that differ by 2**63, change the checksum."""
    for gap in (1, 2, 3, 4, 8):
        values = torch.zeros(10, dtype=dtype)
        values[0], values[gap] = 1.5, -1.5
        swapped = values.clone()
        swapped[0], swapped[gap] = -1.5, 1.5

        assert take(values) != take(swapped), gap


def test_changes_that_cancel_by_their_positions_are_seen():
    """+1 +1 -1 -1 at positions whose numbers add up alike change the checksum."""
    values = torch.arange(100, dtype=torch.int32)
    for first, second, third, fourth in [(0, 3, 1, 2), (10, 40, 20, 30), (0, 99, 49, 50)]:
        changed = values.clone()
        changed[[first, second]] += 1
        changed[[third, fourth]] -= 1

        assert take(values) != take(changed)


@pytest.mark.parametrize("values", [[0x7FC00000, 0x7FC00001], [0, -(2**31)]])
def test_numbers_that_compare_equal_or_never_are_told_apart_by_their_bits(values):
    """Two NaNs of different bits, and zero and minus zero, differ; the same bits do not."""
    one, other = (torch.tensor([value], dtype=torch.int32).view(torch.float32) for value in values)

    assert take(one) != take(other)
    assert take(one) == take(one.clone())
    assert not bits.same_bits(one, other)
    assert bits.same_bits(one, one.clone())


def test_same_bits_are_of_as_many_elements_of_one_size():
    """A tensor that is longer, or of wider elements, has others."""
    zeros = torch.zeros(4)

    assert not bits.same_bits(zeros, torch.zeros(5))
    assert not bits.same_bits(zeros, torch.zeros(4, dtype=torch.float64))


def test_checksums_of_several_tensors_are_one_row():
    """In their order; of no tensor there is none."""
    one, other = torch.randn(3), torch.randn(5)
    checksums = Checksums(CPU, num_elements=8)

    assert checksums.take_all([one, other]).tolist() == [take(one), take(other)]
    assert checksums.take_all([]).tolist() == []


def test_only_values_count_and_not_how_they_lie_in_memory():
    """A transposed view has the checksum of its dense copy, a lazy conjugate that of its values."""
    matrix = torch.randn(6, 7)
    complex_ones = torch.randn(5, dtype=torch.complex64)

    assert take(matrix.T) == take(matrix.T.contiguous()) != take(matrix)
    assert take(complex_ones.conj()) == take(complex_ones.conj().resolve_conj())
    assert take(complex_ones.conj()) != take(complex_ones)
    assert take(torch.tensor(3.0)) == take(torch.tensor([3.0]))
    assert take(torch.empty(0)) == 0


def test_a_large_tensor_goes_in_pieces(monkeypatch):
    """Neither the size of a piece nor the weights at hand change the checksum."""
    values = torch.randn(101)
    expected = take(values, num_elements=101)

    for chunk in (1, 7, 100, 101, 128):
        monkeypatch.setattr(bits, "_CHUNK", chunk)
        for num_elements in (0, 3, 101):
            assert expected == take(values, num_elements=num_elements), (chunk, num_elements)


def test_sums_wrap_around_as_integers_modulo_2_to_the_64():
    """The checksum is that of arithmetic without a limit, taken modulo 2**64 at its end."""
    words = torch.randint(-(2**31), 2**31, (1000,)).to(torch.int32)
    weights = bits.odd_weights(0, 1000, CPU).tolist()
    exact = sum(word * weight for word, weight in zip(words.tolist(), weights, strict=True))

    assert exact % 2**64 == take(words) % 2**64
    assert all(weight % 2 for weight in weights)
    assert [weight % 2**32 for weight in weights[:3]] == [1, 3, 5]
    assert len({weight >> 32 for weight in weights}) == 1000
