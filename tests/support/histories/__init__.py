"""Histories: what clients asked and were told under faults, and checks of it.

Client processes record each operation before and after it (`records`). Afterwards the log of the
store is read (`witness`), and the checker replays it in a model (`checker`). `registers` gives the
same records, without the numbers of publications, to porcupine.
"""
