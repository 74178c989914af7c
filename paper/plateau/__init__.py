"""Networks trained to their plateau, and what sampling them is worth."""
