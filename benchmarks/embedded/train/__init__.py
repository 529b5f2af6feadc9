"""The recipe of the small model in the package, in stages that can be resumed.

    python -m embedded.train benchmarks/embedded/recipe.json --out runs/emoji

words      a tokenizer from the captions of the training scenes
tower      image encoder, projector, word embeddings: patches are pulled towards the word for what they show
language   the decoder, on text alone: it learns what to expect where, and never sees a picture
projector  the projector alone, on captions
fine-tune  projector and decoder, briefly, on captions and questions; boxes are not used
"""
