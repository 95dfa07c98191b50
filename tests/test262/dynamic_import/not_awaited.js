// An import that nobody awaits does no harm.
import("@codemode/errors");
void import("@codemode/discovery");
