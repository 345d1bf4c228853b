"""A request's tokens as its engine would count them: templates, tokenizers, engines asked."""
