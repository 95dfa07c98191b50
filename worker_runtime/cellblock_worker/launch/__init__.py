"""Launch starts processes without holding the host's loop, through a small launcher beside it.

In: a command line, its environment, its cgroup. Out: a child process and its pipes. It may import `base`; `launcher`
itself runs as a file and imports nothing of ours. Start at `launching`; `spawning` starts without a launcher.
"""
