"""What trained models are asked beside their validation loss: recall on real text, and public tasks."""
