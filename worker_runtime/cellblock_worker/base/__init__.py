"""Base holds what knows of no host and no worker: folders by descriptor, a process's tie to its parent."""
