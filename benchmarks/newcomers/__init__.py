"""Does `gapless train` with nothing but data learn as well as a search over its flags?"""
