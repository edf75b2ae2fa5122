"""Stable codes of findings: what each means and what mends it (docs/verification.md prints these tables)."""

from __future__ import annotations

#: Code -> (meaning, cure).
EXPLAINED: dict[str, tuple[str, str]] = {
    # schedules
    "E-ROUTE": (
        "a row's route is no connected path from its source to its destination through vertices that are no ranks",
        "route over links that meet; store and forward through a rank is two rows",
    ),
    "E-SELF": ("a row sends a chunk from a rank to itself", "drop the row: the rank has the chunk"),
    "E-ABSENT": (
        "a row sends a chunk that its source does not hold at that level",
        "raise the level above that of the row that brings the chunk, or add that row",
    ),
    "E-ORDER": (
        "two arrivals of one level do not commute, so the result is not defined",
        "give a copy and an addition to one place different levels",
    ),
    "E-REDUCE": (
        "a row adds where nothing may be added",
        "make it a copy (nothing is added in a collective that only moves data, or where the receiver has nothing)",
    ),
    "E-GROUP": (
        "rows declared as one multicast or in-network reduction are none",
        "group rows of one chunk, level and source (reduction: destination) whose routes share a switch that can",
    ),
    "E-SYMMETRY": (
        "the generators of the orbit form do not give a full set of rows",
        "use permutations that map links onto equal links, and one row of each orbit",
    ),
    "W-REDUNDANT": ("a row brings a chunk to a rank that holds it already", "drop the row"),
    # both
    "E-DOUBLE": (
        "a contribution is added twice",
        "add each partial sum once: a rank that has passed its sum on must not add it again",
    ),
    "E-POST": (
        "an output does not hold what the collective asks for",
        "follow the chain of steps in the message to the first one that moves the wrong thing, or add the missing step",
    ),
    "E-COLLECTIVE": (
        "the collective does not fit, or does not fit the one that was given",
        "give the collective that the file is for, with as many ranks and units",
    ),
    "E-NOT-JUDGED": (
        "the collective is not known, so the result cannot be judged (give it with -c)",
        "name it with -c, or as `collective=` in Python",
    ),
    "W-REPLICA-DRIFT": (
        "ranks that hold the same sum add its terms in different trees (an error with --deterministic)",
        "reduce each unit at one rank and copy the sum, or let both sides of an exchange add the same two operands",
    ),
    # programs
    "E-RANGE": (
        "an operand lies outside its buffer",
        "mind that index plus count must not pass the end, and that every operand is local to the step's own rank",
    ),
    "E-SIZE": (
        "a declared buffer size does not fit the collective's arithmetic, or a trace's message has no bytes",
        "cut the payload into a multiple of the ranks (allgather, reducescatter, alltoall), buffers accordingly",
    ),
    "E-PEER": (
        "a step needs a peer that its threadblock does not have, or a peer is no other rank",
        "set the threadblock's send or receive peer, or move the step to one that has it",
    ),
    "E-CONN-SHARED": (
        "a connection (source, destination, channel) is used by two threadblocks of one rank",
        "give one of them another channel, or merge them",
    ),
    "E-CHANNEL": ("a channel number is not below the number of channels", "number channels from 0, or raise nchannels"),
    "E-PAIRING": (
        "the two ends of a connection do not exchange the same messages",
        "make sends and receives of a connection equal in number and, one by one, in size",
    ),
    "E-DEP": (
        "a step waits for a step that does not exist or never publishes its index",
        "correct depid and deps; set hasdep=1 on the step that is waited for",
    ),
    "E-DEADLOCK": (
        "steps wait for each other in a circle, or for what never comes",
        "send before receiving on one side of the circle, or keep fewer unread messages than the protocol's FIFO holds",
    ),
    "E-RACE": (
        "two conflicting accesses are not ordered",
        "let the later one wait for the earlier one; room in a FIFO is no order",
    ),
    "E-UNDEFINED-READ": (
        "a step reads memory that nobody wrote", "write it first, or read the buffer that holds the data"
    ),
    "E-MIX": ("a step adds data of different places", "give both operands the same unit of the payload"),
    "E-CLOBBER": (
        "the input buffer is not intact at the end although it must be",
        "work in scratch or output, or declare the program in place only",
    ),
    "E-UNSUPPORTED": ("an instruction that this prover cannot execute", "use the operations of docs/formats.md"),
    "W-NOP": (
        "a nop that carries no dependency, or is followed by no step that carries one",
        "drop the nop, or give the step after it a dependency",
    ),
    "W-EMPTY": ("a step that moves nothing", "drop the step at both ends"),
    # one-sided programs
    "E-SIGNAL": (
        "signals and waits (or releases and acquires) do not match, or it is not said who takes them",
        "one wait for each signal of a channel and direction, by one threadblock; semaphores back to their first value",
    ),
    "E-BARRIER": (
        "a barrier is not passed equally often by as many threadblocks as it waits for",
        "let exactly its threadblocks pass it, each equally often",
    ),
    "E-PACKET": (
        "packets are written twice, nobody writes them, or they lie where plain data does",
        "write each packet once into scratch of its own, and read it with packet reads",
    ),
    "W-START": (
        "another rank's memory is used before that rank is known to have begun",
        "exchange signals first, unless the runtime starts all ranks together",
    ),
    "W-END": (
        "a rank may end while another one still uses its memory",
        "exchange signals last, unless the caller keeps the buffers",
    ),
    # target limits
    "E-LIMIT-STEPS": ("more steps in a threadblock than the target allows", "spread them over threadblocks"),
    "E-LIMIT-TBS": ("more threadblocks on a rank than the target allows", "lower with --max-threadblocks"),
    "E-LIMIT-DEP-TB": (
        "a dependency on a threadblock whose id is too large for the target",
        "number the threadblocks that are waited for first",
    ),
    "E-LIMIT-CHANNELS": ("more channels than the target has", "lower with --max-channels"),
    "E-LIMIT-TBS-PER-CHANNEL": (
        "more sending or receiving threadblocks on one channel of a rank than the target allows", "use more channels"
    ),
    "E-LIMIT-COUNT": ("a step moves more units than the target allows", "cut the step in two, at both ends"),
    "E-LIMIT-INDEX": ("an operand's index is larger than the target allows", "use fewer chunks"),
    "E-LIMIT-FUSED": ("a fused receive that the target does not run", "lower without fusion (--target does)"),
    "E-LIMIT-DEPS": (
        "several dependencies on one step, which the target can only carry on nops",
        "write with --target, which puts all but one on nops",
    ),
    "E-LIMIT-NODES": ("more XML nodes for one rank than the target reads", "use fewer steps on that rank"),
    "E-LIMIT-ROOT": ("a root other than 0, which the target cannot express", "renumber the ranks"),
    "E-LIMIT-NOP": ("a nop that the target does not accept where it stands", "give the next step a dependency"),
    "E-LIMIT-OP": ("an operation that the target does not run", "lower with --target"),
    "E-LIMIT-TB-CHANNELS": ("more channels in a threadblock than the target allows", "use more threadblocks"),
    "E-LIMIT-SEMAPHORES": ("more semaphores than the target has", "use fewer, or a barrier"),
    "E-LIMIT-BARRIERS": ("more barriers than the target has", "use fewer"),
    "E-LIMIT-OP-CHANNELS": ("more channels in one operation than the target holds", "use several operations"),
    "E-LIMIT-OP-BUFFERS": ("more operands in one operation than the target holds", "use several operations"),
    # MSCCL++ plans
    "E-NOSYNC": (
        "an operation starts before all threads of its block are ready for it",
        "put a nop before it",
    ),
    "E-PLAN-V1": (
        "the schema before August 2025, which the current loader does not read",
        "write it anew: collsynth reads both",
    ),
    "E-PLAN-NAME": ("the plan has no name, and the loader needs one", "name it"),
    "E-PLAN-ID": ("GPUs or threadblocks that are not numbered in order", "number them from 0"),
    "E-PLAN-KEY": ("something that a plan must have is missing or of the wrong type", "see the message"),
    "E-PLAN-ZERO-CHUNKS": ("no input or output chunks: the loader divides by them", "give each buffer a chunk"),
    "E-PLAN-OP": ("an operation that the executor does not know", "use the operations of docs/mscclpp.md"),
    "E-PLAN-CHANNEL": ("a channel of unknown type, or a remote operand without one", "say memory, port or switch"),
    "E-PLAN-SIGNAL": ("a put-with-signal on a memory channel, which does not signal", "use put, nop, signal"),
    "E-PLAN-LOOP": (
        "the ends of a channel, semaphore or barrier loop differently often",
        "use pipelines of one unit_size and num_chunks for everything that waits for each other",
    ),
    "W-TRANSPORT-ONLY": (
        "only the transport is proven: the trace does not carry the program that it was made from",
        "write traces with collsynth, or verify the program itself",
    ),
    "E-READ": ("the file cannot be read (`collsynth verify --json` only)", "see the message"),
}  # fmt: skip

#: The same for what readers of formats object to; these hold for the runtimes that the reader names.
READER_EXPLAINED: dict[str, tuple[str, str]] = {
    # MSCCL XML
    "X-PROLOG": (
        "an XML declaration or processing instruction, at which the runtimes' tokenizer stops",
        "begin with `<algo`",
    ),
    "X-ENCODING": (
        "a byte-order mark before the first `<`",
        "save as plain ASCII or UTF-8 without a mark",
    ),
    "X-TEXT": (
        "text or CDATA between elements",
        "remove it",
    ),
    "X-ENTITY": (
        "an entity reference, which the runtimes take literally",
        "write the character, or another name",
    ),
    "X-TAB": (
        "a tab before `<`",
        "indent with blanks",
    ),
    "X-TAG-BREAK": (
        "a tab or line break inside a tag",
        "one tag on one line",
    ),
    "X-TAG-SPACE": (
        "blanks around `=` or several between attributes",
        "exactly one blank between attributes",
    ),
    "X-QUOTE": (
        "a value in single quotes, which the runtimes misread",
        "double quotes",
    ),
    "X-ATTRIBUTES": (
        "more attributes than the runtimes keep (16)",
        "drop those that nobody reads",
    ),
    "X-CHILDREN": (
        "more children than the runtimes' fixed table holds (1024)",
        "fewer threadblocks or steps in one element",
    ),
    "X-LENGTH": (
        "a value that overflows the runtimes' field (255 bytes)",
        "a shorter name",
    ),
    "X-MISSING": (
        "an attribute that a runtime's parser demands is not there",
        "add it; files written with `--target` have all",
    ),
    "X-ELEMENT": (
        "an element that no runtime executes (TACCL's `copy`)",
        "write it as a step",
    ),
    "X-NUMBER": (
        "a leading zero: the runtimes read octal",
        "write it without",
    ),
    "X-FLAG": (
        "hasdep is neither 0 nor 1",
        "0 or 1",
    ),
    "X-BUFFER": (
        "an unused operand without a buffer letter",
        "`i`, `o` or `s`, also where it is not used",
    ),
    "X-COLL": (
        "a collective that the runtime does not know by that spelling",
        "`reduce_scatter` for msccl, `reducescatter` for the others",
    ),
    "X-MODES": (
        "neither inplace nor outofplace is set: nothing selects the file",
        "set the modes for which it is right",
    ),
    "X-WINDOW": (
        "no size is selected (maxBytes=0 for msccl, or maxBytes below minBytes)",
        "an explicit maxBytes above the payload",
    ),
    "X-CHUNKS": (
        "chunk counts that contradict each other",
        "i_chunks and o_chunks as the collective makes them, or 0",
    ),
    "X-GPUS": (
        "a rank has no `<gpu>`",
        "one for each of ngpus",
    ),
    "X-TB-ID": (
        "threadblock ids are not 0, 1, 2 ...",
        "number them without gaps",
    ),
    "X-STEP-NUMBER": (
        "`s` is not what the runtimes count",
        "number steps by their position; dependencies use that count",
    ),
    "X-NOP": (
        "a nop without a dependency: it vanishes and shifts later step numbers",
        "drop it",
    ),
    "X-NOP-FLAG": (
        "hasdep on a nop, which is lost",
        "set it on a step that does something",
    ),
    "X-NOP-CHAIN": (
        "the step after a nop carries no dependency: parsers refuse the file",
        "move one of the nop's dependencies onto it",
    ),
    # Chakra traces
    "E-ID": (
        "two nodes of a trace have one id",
        "number nodes uniquely in each file",
    ),
    "E-DEPENDENCY": (
        "a node depends on one that does not exist: it is never issued",
        "correct data_deps",
    ),
    "E-CYCLE": (
        "nodes of traces wait for each other",
        "send before receiving on one side",
    ),
    "E-ATTRIBUTE": (
        "an attribute that the node needs is missing or no whole number",
        "comm_size, comm_src, comm_dst, comm_tag as integers",
    ),
    "E-TAG": (
        "a tag outside of ASTRA-sim's range",
        "0 .. 499 999 999",
    ),
    "E-NODE": (
        "a node that is started and never ends",
        "leave metadata to the head of the file",
    ),
    "E-EMPTY": (
        "a rank has no nodes, which ASTRA-sim refuses",
        "give it a COMP node that does nothing",
    ),
    "W-SHARED-TAG": (
        "messages in flight share tag, ends and size: which is which is left to chance",
        "a tag of its own for each message",
    ),
}  # fmt: skip

#: Code -> meaning.
CODES: dict[str, str] = {code: meaning for code, (meaning, _) in (EXPLAINED | READER_EXPLAINED).items()}
#: Code -> cure.
CURES: dict[str, str] = {code: cure for code, (_, cure) in (EXPLAINED | READER_EXPLAINED).items()}
