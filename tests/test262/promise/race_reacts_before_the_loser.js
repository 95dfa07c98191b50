// The loser's rejection is handled by `race`: it is no unhandled rejection.
same(await Promise.race([Promise.resolve(1), Promise.reject(new Error("lost"))]), 1, "value");
