"""Text, conversations or token ids to a stream of tokens in rows: ``packdata tokens``.

The source is cut into pieces when it is listed; a thread turns each into documents (``texts``,
``ids``), these into ids (``tokenizer``), and these into rows (``rows``).
"""
