"""What the bundled models are asked to continue: beginnings of Python files.

Each ends where a line ends, so that the model itself chooses the next indentation.
"""

PROMPTS = (
    """\
import argparse


def main():
    parser = argparse.ArgumentParser(description="Count the words of a file.")""",
    """\
import unittest


class StackTest(unittest.TestCase):

    def test_push(self):
        stack = Stack()
        stack.push(1)
        self.assertEqual(len(stack), 1)

    def test_pop(self):""",
    '''\
def read_config(filename, encoding="utf-8"):
    """Read a configuration file and return a dictionary.

    Empty lines and lines that start with '#' are ignored.
    """''',
    '''\
class BoundedQueue:
    """A first-in, first-out queue with a maximum size."""

    def __init__(self, maxsize=0):''',
)
