"""What is minimised: the classification loss and the localization loss beside it."""
