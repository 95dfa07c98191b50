"""What tests share. A line for each module:

Servers, settings and processes
    entries             `mcpServers` entries of the test servers in `tests/servers`, settings and files made of them
    public_servers      fixtures: the public MCP servers that `scripts/test` installs below `.servers`
    waits               waits for events, each with a bound that a busy machine keeps
    processes           looks at processes that may end at any moment: which are there or gone; one for a block
    commands            `cellblock` as a user runs it: to its end, in this process, on a terminal, or at its pipes
    responses           the result or the error of a run; fails with the whole response where it is another
    params              parameters of which most say again what a few have shown: those are for `--thorough`
    at_once             threads that begin at the same moment, and what they give or raise

The daemon from outside
    asgi                requests to an ASGI application without a connection
    http_daemon         a real `cellblock serve --http`, and raw HTTP against it
    postgresql          a real PostgreSQL, with a database for each test; killed, stopped and started again
    shared_rows         small things that brokers share, in files and in the rows of a PostgreSQL
    haproxy             HAProxy with the rules that are shipped, and several daemons on one PostgreSQL behind it
    fleet               brokers, hosts, balancer and database as real processes, and links that can be cut
    ray_cluster         a Ray cluster of several raylets: nodes are added, and killed
    parked_runs         runs that wait for a person in a daemon, as the dashboard lists them
    modern_client       a client of MCP 2026-07-28, which has no sessions
    asking_client       an MCP client with a user who answers questions, and one of `serve --profile proxy`
    cellblock_zygote    `cellblock`, and servers made with the MCP SDK: imported once, forked for each start
    pseudo_terminal     a program in a terminal: its screen, and keys for it
    browser             a Chromium without a window
    certificates        certificates for TLS
    secret_service      a session bus and a GNOME keyring, the machine's or unpacked below `.servers`
    ring                a keyring in memory, which may hang or refuse; fixture `ring`
    oauth_world         an authorization server, the MCP server that it protects, pages of logins, browsers that log in
    identity_provider   an authorization server's keys and tokens, and an identity provider, as its clients see it
    http_server         a small HTTP server in a thread of its own, also for MCP by hand

Parts of the broker and of the host
    brokers             brokers in this process, whose servers have started; their hosts; runs that have begun
    loop_steps          what the longest step of the event loop takes
    accounts            the memory of a run that shares its budget with nobody
    discovery           asks for what is there as a run does
    memory_host         a worker host in this process that plays what a test wants, with the real parts above the wire
    local_tools         the Python tools `read` and `write` of runs that are parked, and how often each was called
    memory_keeper       the keeper of runs, its store in this thread: a test has the disk answer, and the broker die
    opened_journals     looks into journals as no product code does
    fake_worker         programs in Deno's place that speak the frame protocol as badly as a test wants
    scripted_broker     a broker that a test scripts, for a worker host of the test's own process
    still_broker        a broker whose facts do not change, for metrics and the dashboard
    standing_service    what a front-end needs of a broker that runs nothing
    retries             other pauses between attempts to connect to servers
    worker_owner        one worker: boots it, leases it, records what it says; or runs scripts in a V8 context each
    reused              sees to it that with `--reuse` runs have used processes
    virtual_time        an event loop whose clock jumps to the next timer when nothing is ready
    run_histories       the world of random histories, and the model of `test_run_random`: what a run must be when
    bpf                 an interpreter of the kernel's classic BPF, for seccomp filters
    foreign_things      files of other programs in a folder that Cellblock uses; planted and compared

Data
    recorded_catalogs   the tool lists of public servers in `tests/fixtures`
    script_corpus       scripts as agents write them, right ones and each with one mistake
    script_templates    the templates that `script_corpus` fills
    script_places       scripts with every line end in every place
    typescript_corpus   TypeScript that is run twice: as Deno compiles it, and with blanks for its types
    tool_schemas        the tool of a Python function, its schemas, and what a call of it gives
    nesting             values that nest as deeply as is asked
    replaying           makes scripts of a number, records them, replays them elsewhere, cuts recordings and goes on
    shown_runs          what a daemon says of its runs

Documents and the specification
    documents           the fenced blocks of README.md and docs/
    feedback            scripts and commands for each sentence of what wrong scripts are told, and the page of answers
    clauses             a pytest plugin: ties tests to the clauses of the specification (`@pytest.mark.clause`)
"""
