"""What is learnt: recipes (a batch becomes a loss), and what stands before and behind them."""
