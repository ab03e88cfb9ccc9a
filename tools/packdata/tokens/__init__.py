"""Text, conversations or token ids to a stream of tokens in rows: ``packdata tokens``.

The source is cut into pieces when it is listed (``files``, ``source``); a thread turns each into documents (of rows:
``contents``, ``chat``; of files of ids: ``ids``), these into ids (``tokenizer``), and these into rows (``rows``).
"""
