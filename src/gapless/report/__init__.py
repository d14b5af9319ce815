"""Records in, strings out: measures nothing and imports no torch.

Of each subject NAME (comparison, difference, session, training, verification): `NAME_text.py` is for a terminal,
`html/NAME_page.py` for a browser. `json_reports.py` is all that is JSON, `sarif.py` findings for code review,
`perfetto.py` timelines. Tables of text are written by `terminal_text.py`, those of pages by `html/table.py`,
single figures by `figures.py`.
"""
