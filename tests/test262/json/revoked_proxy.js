// A revoked proxy cannot be walked.
const { proxy, revoke } = Proxy.revocable([], {});
revoke();
throws(TypeError, () => JSON.stringify([proxy]), "revoked");
