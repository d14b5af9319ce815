"""Frameworks and programs of other people, as written and with two to four lines of gapless."""
