"""An interactive reproduction of the Born Transformer: corpus, models, training, exact evidence per word."""
