"""Base holds what knows of no host and no worker: folders by descriptor, private files, a process's tie
to its parent, records with checked fields.

In and out: paths, descriptors, bytes. It may import no other room. Start at `folders`.
"""
