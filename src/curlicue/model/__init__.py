"""The mixture VAE and its bound."""
