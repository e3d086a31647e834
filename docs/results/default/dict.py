"""A large dictionary, built and looked up at random: dict.py [ROUNDS]."""
import random
import sys

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
table = {i: str(i) for i in range(1_500_000)}
keys = list(table)
random.Random(1).shuffle(keys)
print(sum(len(table[key]) for _ in range(rounds) for key in keys))
