"""What is learnt from: sources that a user names, documents of token ids, packed rows, states."""
