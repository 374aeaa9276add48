"""Calls of kpool_topk that show faults, for the interpreter and for GPUs: scores of every kind, lengths short and long, every option."""

import itertools

import torch

KINDS = ("distinct", "rising", "ties", "equal", "special", "near", "nan")
SPACES = ("positions", "slots", "rows of another table", "ragged")


def scores(kind, rows, columns, device):
    if kind == "distinct":
        return torch.stack([torch.randperm(columns, device=device) for _ in range(rows)]).float() * 0.37 - columns / 5
    if kind == "ties":
        return torch.randint(-3, 4, (rows, columns), device=device).float()
    if kind == "equal":
        return torch.full((rows, columns), -2.5, device=device)
    if kind == "near":  # differ in the last bits of the mantissa
        return (torch.randint(0, 300, (rows, columns), device=device, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    x = torch.randn(rows, columns, device=device)
    if kind == "rising":  # the best are together, at the end
        return x + torch.arange(columns, device=device) * 0.01
    if kind == "nan":  # fewer numbers than pools to take
        return torch.where(torch.rand(rows, columns, device=device) < 300 / columns, x, torch.nan)
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38], device=device)
    at = torch.randint(0, 2, (rows, columns), device=device).bool()
    return torch.where(at, odd[torch.randint(0, len(odd), (rows, columns), device=device)], x)


def call(kind, space, lengths, *, tail=True, starts=False, topk=2048, kpool=4, device="cpu"):
    """The arguments of a call with a row for each of ``lengths``; outputs are poisoned, and strided like every other matrix."""
    rows, most = len(lengths), max(*lengths, 1)
    columns = most + (5 if starts else 0)
    wide = torch.full((rows, columns + 3), torch.inf, device=device)
    wide[:, 2 : 2 + columns] = scores(kind, rows, columns, device)

    def ints(values):
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    seq_lens = [n * kpool + turn for n, turn in zip(lengths, itertools.cycle(range(kpool)), strict=False)]
    given = {"score": wide[:, 2 : 2 + columns], "lengths": ints(lengths), "topk": topk, "kpool": kpool}
    if starts:
        given["row_starts"] = ints(b % 6 for b in range(rows))
    if tail:
        given["seq_lens"] = ints(seq_lens)
    if space == "ragged":
        given["offset"] = ints(itertools.accumulate([0, *seq_lens[:-1]]))
    elif space != "positions":
        table = torch.randint(0, 2**31 - 1, (rows, most * kpool + kpool + 2), dtype=torch.int32, device=device)
        given["page_table"] = table[:, 1:]
        if space != "slots":
            given["page_table"] = table[: rows // 2 + 1, 1:]
            given["page_table_row"] = ints([-1, rows, *(b % (rows // 2 + 1) for b in range(2, rows))][:rows])
    width = topk + (kpool - 1) * tail
    given["out"] = torch.full((rows, width + 3), -7, dtype=torch.int32, device=device)[:, 1 : 1 + width]
    given["topk_length"] = torch.full((rows,), -7, dtype=torch.int32, device=device)
    return given


def out_of_range(device="cpu"):
    """Lengths beyond the scores and beyond 2^31 positions, negative ones, starts outside, positions that the page table does not have."""
    given = call("distinct", "slots", [600] * 6, starts=True, device=device)
    given["lengths"][:] = torch.tensor([700, -3, 600, 600, 2**29, 2**30 + 1])
    given["row_starts"][:] = torch.tensor([2, -4, 900, 0, 1, 0])
    given["seq_lens"][:] = torch.tensor([2803, -1, 2401, 2402, 2403, 2403])
    given["page_table"] = given["page_table"][:, :1000]
    return given


def agree(run, reference, given):
    """``run`` and ``reference`` fill the same outputs from ``given``; what lies beside ``out`` is left alone."""
    wanted = {**given, "out": given["out"].clone(), "topk_length": given["topk_length"].clone()}
    run(**given)
    reference(**wanted)
    assert torch.equal(given["topk_length"], wanted["topk_length"])
    assert torch.equal(given["out"], wanted["out"]), (given["out"] != wanted["out"]).nonzero()[:5].tolist()
    beside = given["out"]._base
    assert (beside[:, [0, -1, -2]] == -7).all()
